"""Heartbeats: a page of shared memory in which a server or worker writes that it is alive, and what it is doing.

Nobody sends or asks anything, so a frozen process keeps nobody waiting, and the page of a killed process can still be read.
"""

import contextlib
import threading
import time
from collections.abc import Hashable
from pathlib import Path

import numpy as np

from ._memory import Memory, pages

BEAT_SECONDS = 1.0
_BEATS, _CLOSURE, _ATTEMPT = range(3)
NBYTES = pages(3 * 8)
_MAX_STEP = 2 * BEAT_SECONDS


class Pulse:
    """One process's page, over `memory` of NBYTES. The process writes it, and its coordinator reads it."""

    def __init__(self, memory: np.ndarray):
        self._cells = memory[:NBYTES].data.cast("Q")

    @classmethod
    def alone(cls) -> "Pulse":
        """Make a page that is not shared, for threads of the coordinator and for processes without shared memory."""
        return cls(np.zeros(NBYTES, np.uint8))

    @classmethod
    def over(cls, memory: Memory) -> "Pulse":
        """Make a page over shared memory."""
        return cls(memory.view(0, NBYTES))

    @property
    def beats(self) -> int:
        """The number of heartbeats so far; 0 before the first one, and always for threads."""
        return self._cells[_BEATS]

    @property
    def executing(self) -> tuple[int, int] | None:
        """The closure that it is running, and the attempt; None if it runs none."""
        closure = self._cells[_CLOSURE]
        return (closure - 1, self._cells[_ATTEMPT]) if closure else None

    def begin(self, closure: int, attempt: int) -> None:
        """Note that a closure is about to run."""
        self._cells[_ATTEMPT] = attempt
        self._cells[_CLOSURE] = closure + 1

    def end(self) -> None:
        """Note that the closure's answer has been sent."""
        self._cells[_CLOSURE] = 0

    def start_beating(self) -> None:
        """Beat from now on, in a thread, since closures may take any time."""
        threading.Thread(target=self._beat, name="replicant-pulse", daemon=True).start()

    def _beat(self) -> None:
        while True:
            self._cells[_BEATS] += 1
            time.sleep(BEAT_SECONDS)


class Vigil:
    """Measures how long something has not changed, without the time during which nobody watched.

    >>> vigil = Vigil()
    >>> [vigil.look(sign, 1.0) for sign in ("a", "a", "a", "b", "b")]
    [0.0, 1.0, 2.0, 0.0, 1.0]
    >>> vigil.look("b", 3600.0)  # the watcher itself was stopped
    3.0
    """

    def __init__(self) -> None:
        self._sign: Hashable = object()
        self.seconds = 0.0

    def look(self, sign: Hashable, passed: float) -> float:
        """The seconds for which `sign` has not changed. `passed`: seconds since the last look."""
        if sign != self._sign:
            self._sign, self.seconds = sign, 0.0
        else:
            self.seconds += min(passed, _MAX_STEP)
        return self.seconds


def processor_seconds(pid: int) -> str:
    """The processor time that a process has used, as the system writes it; empty where the system does not say.

    It shows that a process is alive while its code keeps the heartbeat thread from running.
    """
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return " ".join(fields[11:13])
    return ""
