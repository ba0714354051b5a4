"""The main program of a server's or worker's process."""

import faulthandler
import os
import signal
import socket
import threading
from typing import Any

import jax

from ._memory import Memory
from ._pulse import Pulse
from ._store import ServerMemory
from ._transport import play
from ._wire import Channel


def main(job: dict[str, Any]) -> None:
    """Be what `job` says. The program that started this process holds the other end of `lifeline`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which ends this process then
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows where a process is that seems to stand still
    threading.Thread(target=_end_with, args=(job["lifeline"],), daemon=True).start()
    pulse = Pulse.over(Memory(job["pulse"]))
    pulse.start_beating()
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # every result is waited for at once: no thread need be woken
    memories = [ServerMemory(Memory(values), Memory(saved)) for values, saved in job["memories"]]
    play(job["role"], job["number"], Channel(socket.socket(fileno=job["control"]), "the coordinator"), memories, pulse)


def _end_with(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(0)  # also out of a computation
