"""The main program of a server's or worker's process."""

import faulthandler
import os
import select
import signal
import socket
import threading
from typing import Any

import jax

from ..servers._store import ServerMemory
from ..wire._channel import Channel
from ..wire._memory import Memory
from ..wire._pulse import Pulse
from ._transport import play

_LOOK_SECONDS = 1.0  # between two looks for the parent


def main(job: dict[str, Any]) -> None:
    """Be what `job` says. The program that started this process holds the other end of `lifeline`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which ends this process then
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows where a process is that seems to stand still
    threading.Thread(target=_end_with, args=(job["lifeline"], job["parent"]), daemon=True).start()
    pulse = Pulse.over(Memory(job["pulse"]))
    pulse.start_beating()
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # every result is waited for at once: no thread need be woken
    memories = [ServerMemory(Memory(values), Memory(saved)) for values, saved in job["memories"]]
    play(job["role"], job["number"], Channel(socket.socket(fileno=job["control"]), "the coordinator"), memories, pulse)


def _end_with(lifeline: int, parent: int) -> None:
    """End this process with the one that started it, whatever way that ends.

    The lifeline closes at once, unless a process that was forked from the parent holds it open: so the parent is looked for, too.
    """
    while os.getppid() == parent:
        if select.select([lifeline], [], [], _LOOK_SECONDS)[0]:
            break
    os._exit(0)  # also out of a computation
