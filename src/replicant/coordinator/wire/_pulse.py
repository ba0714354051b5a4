"""Signs of life: a page of memory in which a server or worker writes that it is there, and what it is doing.

Nothing is sent and nothing is asked, so a process that stands still keeps nobody waiting, and one that was killed can still be
read.
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
    """One process's page, over `memory` of NBYTES. It writes, its coordinator reads."""

    def __init__(self, memory: np.ndarray):
        self._cells = memory[:NBYTES].data.cast("Q")

    @classmethod
    def alone(cls) -> "Pulse":
        """Of one that shares no memory with its coordinator, or has its threads."""
        return cls(np.zeros(NBYTES, np.uint8))

    @classmethod
    def over(cls, memory: Memory) -> "Pulse":
        """Over shared memory."""
        return cls(memory.view(0, NBYTES))

    @property
    def beats(self) -> int:
        """How often it has said that it is there; 0 until it begins to, and always for threads."""
        return self._cells[_BEATS]

    @property
    def executing(self) -> tuple[int, int] | None:
        """The closure that it is calling, and which attempt at it that is."""
        closure = self._cells[_CLOSURE]
        return (closure - 1, self._cells[_ATTEMPT]) if closure else None

    def begin(self, closure: int, attempt: int) -> None:
        """A function is about to be called."""
        self._cells[_ATTEMPT] = attempt
        self._cells[_CLOSURE] = closure + 1

    def end(self) -> None:
        """Its answer has been sent."""
        self._cells[_CLOSURE] = 0

    def start_beating(self) -> None:
        """Beat from now on, in a thread: functions may take as long as they like."""
        threading.Thread(target=self._beat, name="replicant-pulse", daemon=True).start()

    def _beat(self) -> None:
        while True:
            self._cells[_BEATS] += 1
            time.sleep(BEAT_SECONDS)


class Vigil:
    """For how long something has been as it is, as far as somebody has been there to see it.

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
        """Seconds without a change of `sign`. passed: seconds since the last look."""
        if sign != self._sign:
            self._sign, self.seconds = sign, 0.0
        else:
            self.seconds += min(passed, _MAX_STEP)
        return self.seconds


def processor_seconds(pid: int) -> str:
    """How much processor time a process has used, as the system writes it: code that lets no thread beat is alive nonetheless.

    Empty where the system does not say.
    """
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return " ".join(fields[11:13])
    return ""
