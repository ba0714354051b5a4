"""What is scheduled, what runs where, and what becomes of it when a worker is lost: a pure state machine.

A closure is a scheduled function with its arguments, known here by its number only. It waits for other closures whose results it
needs, is taken by a worker, and ends: finished, failed or cancelled. When its worker is lost it is taken again, first of all.
Whoever owns the queue holds a lock around every call.
"""

import collections
import dataclasses
from collections.abc import Hashable, Iterable


@dataclasses.dataclass(frozen=True)
class Task:
    """One attempt at a closure. low_water: all closures with smaller numbers have ended for good."""

    closure: int
    attempt: int
    low_water: int


@dataclasses.dataclass
class _Closure:
    needs: set[int]
    attempt: int = -1
    worker: Hashable = None
    overlaps: int = 0  # closures that may push between its reads and its own push


class ClosureQueue:
    """Closures that have not ended.

    max_staleness: how many other closures may push while one computes; None for any number. max_attempts: how many workers a
    closure may lose before it fails. depth: how many closures a worker holds at once.
    """

    def __init__(self, *, max_staleness: int | None = None, max_attempts: int = 5, depth: int = 2):
        self._max_staleness = max_staleness
        self._max_attempts = max_attempts
        self._depth = depth if max_staleness is None else 1  # what waits at a worker would have to count as running
        self._closures: dict[int, _Closure] = {}
        self._ready: collections.deque[int] = collections.deque()
        self._running: dict[int, None] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._closures)

    @property
    def num_queued(self) -> int:
        """Closures that no worker has."""
        return len(self._closures) - len(self._running)

    @property
    def num_ready(self) -> int:
        """Closures that could be taken, if nothing else forbids it."""
        return len(self._ready)

    def has_room(self, num_workers: int) -> bool:
        """Whether `num_workers` workers could hold more than they do."""
        return len(self._running) < num_workers * self._depth

    @property
    def low_water(self) -> int:
        """All closures with smaller numbers have ended."""
        return min(self._closures, default=self._next)

    def add(self, needs: Iterable[int] = ()) -> int:
        """A new closure, which runs after those in `needs` that have not ended. Returns its number."""
        number, self._next = self._next, self._next + 1
        closure = _Closure({n for n in needs if n in self._closures})
        self._closures[number] = closure
        if not closure.needs:
            self._ready.append(number)
        return number

    def take(self, worker: Hashable) -> Task | None:
        """The next closure for `worker`; None if there is none, it has enough, or the bound on staleness says wait."""
        if not self._ready or self.held_by(worker) >= self._depth or not self._within_bound():
            return None
        number = self._ready.popleft()
        closure = self._closures[number]
        for other in self._running:
            self._closures[other].overlaps += 1
        closure.overlaps = len(self._running)
        closure.attempt += 1
        closure.worker = worker
        self._running[number] = None
        return Task(number, closure.attempt, self.low_water)

    def held_by(self, worker: Hashable) -> int:
        """How many closures `worker` has."""
        return sum(self._closures[number].worker == worker for number in self._running)

    def _within_bound(self) -> bool:
        bound = self._max_staleness
        if bound is None or not self._running:
            return True
        return len(self._running) <= bound and all(self._closures[number].overlaps < bound for number in self._running)

    def end(self, number: int) -> list[int]:
        """A closure finished or failed. Returns those that waited for it and can run now."""
        self._running.pop(number, None)
        del self._closures[number]
        freed = []
        for waiting, closure in self._closures.items():
            if number in closure.needs:
                closure.needs.discard(number)
                if not closure.needs:
                    self._ready.append(waiting)
                    freed.append(waiting)
        return freed

    def is_current(self, number: int, attempt: int) -> bool:
        """Whether this attempt is the one that counts: a lost worker's answer may still arrive."""
        closure = self._closures.get(number)
        return closure is not None and number in self._running and closure.attempt == attempt

    def cancel_queued(self) -> list[int]:
        """Forget every closure that no worker has. Returns their numbers."""
        cancelled = [number for number in self._closures if number not in self._running]
        for number in cancelled:
            del self._closures[number]
        self._ready.clear()
        return cancelled

    def lose(self, worker: Hashable) -> list[int]:
        """A worker is gone. Its closures are the next to be taken, but those returned have lost too many workers and ended."""
        mine = [number for number in self._running if self._closures[number].worker == worker]
        given_up = []
        for number in reversed(mine):
            del self._running[number]
            closure = self._closures[number]
            closure.worker = None
            if number == mine[0] and closure.attempt + 1 >= self._max_attempts:  # the others only waited behind it
                given_up.append(number)
            else:
                self._ready.appendleft(number)
        return given_up
