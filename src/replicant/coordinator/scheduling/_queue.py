"""The queue of closures: what is scheduled, what runs where, and what happens when a worker is lost. A pure state machine.

A closure is known here by its number only. It waits for the closures whose results it needs, is taken by a worker, and ends:
finished, failed or cancelled. If its worker is lost, it is the next to be taken again. The queue's owner holds a lock around every
call.
"""

import collections
import dataclasses
from collections.abc import Hashable, Iterable

from ..wire._task import Task

UNKNOWN_SECONDS = 1e6


@dataclasses.dataclass
class _Entry:
    """What the queue knows about a closure."""

    needs: set[int]
    attempt: int = -1
    worker: Hashable = None
    seconds: float = 0.0  # how long it will probably take
    overlaps: int = 0  # closures that may push between its reads and its own push
    losses: int = 0  # workers that died while they ran it


@dataclasses.dataclass
class _Held:
    """How many closures a worker has, and how long they will probably take."""

    count: int = 0
    seconds: float = 0.0


class ClosureQueue:
    """The closures that have not ended.

    Args:
        max_staleness: how many other closures may push while one computes; None for any number.
        max_attempts: how many workers may die while they run a closure before it fails.
        depth: how many closures a worker holds at once.
        deep: how many closures a worker may hold if together they are known to take at most `deep_seconds`, so that short ones
            do not wait for messages.
        deep_seconds: see `deep`.
    """

    def __init__(
        self,
        *,
        max_staleness: int | None = None,
        max_attempts: int = 5,
        depth: int = 2,
        deep: int = 16,
        deep_seconds: float = 0.01,
    ):
        self._max_staleness = max_staleness
        self._max_attempts = max_attempts
        self._depth = depth if max_staleness is None else 1  # a closure that waits at a worker would have to count as running
        self._deep = max(deep, depth) if self._depth > 1 else 1
        self._deep_seconds = deep_seconds
        self._closures: dict[int, _Entry] = {}
        self._waiting: dict[int, list[int]] = {}  # for each closure, those that need its result
        self._ready: collections.deque[int] = collections.deque()
        self._running: dict[int, None] = {}
        self._held: dict[Hashable, _Held] = collections.defaultdict(_Held)
        self._next = 0
        self._low_water = 0

    def __len__(self) -> int:
        return len(self._closures)

    @property
    def num_queued(self) -> int:
        """How many closures no worker has."""
        return len(self._closures) - len(self._running)

    @property
    def num_ready(self) -> int:
        """How many closures wait for nothing but a worker."""
        return len(self._ready)

    def has_room(self, num_workers: int) -> bool:
        """Whether `num_workers` workers could hold more closures than they do."""
        return len(self._running) < num_workers * self._depth

    @property
    def num_ended(self) -> int:
        """How many closures have ended or were cancelled."""
        return self._next - len(self._closures)

    @property
    def most_losses(self) -> int:
        """The most workers that have died while running one closure, of the closures that have not ended."""
        return max((closure.losses for closure in self._closures.values()), default=0)

    @property
    def low_water(self) -> int:
        """The number below which all closures have ended."""
        while self._low_water < self._next and self._low_water not in self._closures:
            self._low_water += 1
        return self._low_water

    def add(self, needs: Iterable[int] = ()) -> int:
        """Add a closure, which runs after those in `needs` that have not ended. Returns its number."""
        number, self._next = self._next, self._next + 1
        closure = _Entry({n for n in needs if n in self._closures})
        self._closures[number] = closure
        for needed in closure.needs:
            self._waiting.setdefault(needed, []).append(number)
        if not closure.needs:
            self._ready.append(number)
        return number

    def first_ready(self) -> int:
        """The closure to be taken next. There must be one."""
        return self._ready[0]

    def is_short_of(self, worker: Hashable) -> bool:
        """Whether `worker` should get more closures: it has few of them, or little work."""
        held = self._held[worker]
        return held.count < self._depth or (held.count <= self._deep // 2 and held.seconds <= self._deep_seconds / 2)

    def take(self, worker: Hashable, seconds: float = UNKNOWN_SECONDS) -> Task | None:
        """Take the next closure for `worker`, on which it will probably take `seconds`.

        Returns None if there is none, if the worker has enough, or if the bound on staleness forbids it.
        """
        if not self._ready or not self._has_room(self._held[worker], seconds) or not self._within_bound():
            return None
        number = self._ready.popleft()
        closure = self._closures[number]
        if self._max_staleness is not None:
            for other in self._running:
                self._closures[other].overlaps += 1
            closure.overlaps = len(self._running)
        closure.attempt += 1
        closure.worker, closure.seconds = worker, seconds
        held = self._held[worker]
        held.count, held.seconds = held.count + 1, held.seconds + seconds
        self._running[number] = None
        return Task(number, closure.attempt, self.low_water)

    def _has_room(self, held: _Held, seconds: float) -> bool:
        return held.count < self._depth or (held.count < self._deep and held.seconds + seconds <= self._deep_seconds)

    def held_by(self, worker: Hashable) -> int:
        """How many closures `worker` has."""
        return self._held[worker].count

    def _within_bound(self) -> bool:
        bound = self._max_staleness
        if bound is None or not self._running:
            return True
        return len(self._running) <= bound and all(self._closures[number].overlaps < bound for number in self._running)

    def end(self, number: int) -> list[int]:
        """Note that a closure finished or failed. Returns those that waited for it and can run now."""
        closure = self._closures.pop(number)
        if number in self._running:
            self._let_go(number, closure)
        freed = []
        for waiting in self._waiting.pop(number, ()):
            needs = self._closures[waiting].needs
            needs.discard(number)
            if not needs:
                self._ready.append(waiting)
                freed.append(waiting)
        return freed

    def _let_go(self, number: int, closure: _Entry) -> None:
        del self._running[number]
        held = self._held[closure.worker]
        held.count -= 1
        held.seconds = held.seconds - closure.seconds if held.count else 0.0

    def is_current(self, number: int, attempt: int) -> bool:
        """Whether this attempt is the one that counts. A lost worker's answer may still arrive."""
        closure = self._closures.get(number)
        return closure is not None and number in self._running and closure.attempt == attempt

    def cancel_queued(self) -> list[int]:
        """Forget every closure that no worker has. Returns their numbers."""
        cancelled = [number for number in self._closures if number not in self._running]
        for number in cancelled:
            del self._closures[number]
        self._ready.clear()
        self._waiting.clear()
        return cancelled

    def first_held(self, worker: Hashable) -> tuple[int, int] | None:
        """The closure that `worker` runs, or is about to run, and the attempt. It runs closures in the order they arrive."""
        return next(((n, self._closures[n].attempt) for n in self._running if self._closures[n].worker == worker), None)

    def lose(self, worker: Hashable, executing: int | None) -> list[int]:
        """Note that a worker was lost, and make its closures the next to be taken.

        `executing` is the closure that it was running, the only one that can have caused the loss. Returns the closures that have
        lost too many workers: they are not queued again, and must be ended.
        """
        given_up = []
        for number in reversed([number for number in self._running if self._closures[number].worker == worker]):
            closure = self._closures[number]
            self._let_go(number, closure)
            closure.worker = None
            closure.losses += number == executing
            if closure.losses >= self._max_attempts:
                given_up.append(number)
            else:
                self._ready.appendleft(number)
        self._held.pop(worker, None)
        return given_up
