"""The main program of a server or worker process."""

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

_LOOK_SECONDS = 1.0  # between two checks that the parent is alive


def main(job: dict[str, Any]) -> None:
    """Run the server or worker that `job` describes. The parent process holds the other end of its `lifeline`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which then ends this process
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows where a process hangs
    threading.Thread(target=_end_with, args=(job["lifeline"], job["parent"]), daemon=True).start()
    pulse = Pulse.over(Memory(job["pulse"]))
    pulse.start_beating()
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # each result is awaited at once, so waking a thread would cost time
    memories = [ServerMemory(Memory(values), Memory(saved)) for values, saved in job["memories"]]
    play(job["role"], job["number"], Channel(socket.socket(fileno=job["control"]), "the coordinator"), memories, pulse)


def _end_with(lifeline: int, parent: int) -> None:
    """End this process when its parent ends, in whatever way.

    The lifeline then closes at once, unless a process forked from the parent holds it open. So this checks for the parent, too.
    """
    while os.getppid() == parent:
        if select.select([lifeline], [], [], _LOOK_SECONDS)[0]:
            break
    os._exit(0)  # even in the middle of a computation
