"""Synchronous updates: which closures' changes belong to which update. A pure state machine.

A round is the time between two updates, so all closures that start in one round see the same values. It ends once `size` of them
have offered their changes, which are then applied together. Later offers, computed from outdated values, are rejected. The owner
holds a lock around every call.
"""

from collections.abc import Hashable
from typing import Any


class Rounds:
    """Runs one round after the other.

    Args:
        size: how many offers make an update.
        backups: how many more closures may start in a round.
    """

    def __init__(self, size: int, backups: int = 0):
        self._size = size
        self._backups = backups
        self._round = 0
        self._running: dict[int, tuple[int, Hashable]] = {}  # closure -> (round in which it started, worker)
        self._offers: dict[int, Any] = {}
        self._applying = False
        self.accepted = 0
        self.dropped = 0

    @property
    def updates(self) -> int:
        """How many updates have been made."""
        return self._round

    @property
    def is_idle(self) -> bool:
        """Whether no offer waits to be applied."""
        return not self._offers

    def may_begin(self) -> bool:
        """Whether another closure may start now."""
        is_full = self._applying or len(self._offers) >= self._size
        return not is_full and len(self._offers) + self._num_running() < self._size + self._backups

    def begin(self, closure: int, worker: Hashable) -> None:
        """Note that `worker` starts a closure, which reads the variables from now on."""
        self._running[closure] = self._round, worker

    def offer(self, closure: int, changes: Any) -> bool:
        """Offer the `changes` of a closure that ended. Returns False if it is too late for its round."""
        began, _ = self._running.pop(closure)
        if began != self._round or self._applying:
            self.dropped += 1
            return False
        self._offers[closure] = changes
        self.accepted += 1
        return True

    def leave(self, closure: int) -> None:
        """Note that a closure ended without changes, or failed."""
        self._running.pop(closure, None)

    def lose(self, worker: Hashable) -> None:
        """Forget a lost worker and what it was running."""
        self._running = {closure: entry for closure, entry in self._running.items() if entry[1] != worker}

    def close(self, *, last: bool) -> list[Any] | None:
        """The offers to apply now, in the order of their closures; None while the round is not over.

        With `last`, no further closures will come, so fewer than `size` offers are enough. Call `applied` afterwards.
        """
        is_full = len(self._offers) >= self._size or (last and bool(self._offers) and not self._num_running())
        if self._applying or not is_full:
            return None
        self._applying = True
        return [self._offers[closure] for closure in sorted(self._offers)]

    def applied(self) -> None:
        """Note that the update was made, and start the next round."""
        self._offers.clear()
        self._applying = False
        self._round += 1

    def _num_running(self) -> int:
        return sum(began == self._round for began, _ in self._running.values())
