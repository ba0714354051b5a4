"""A clock that stands still while the supervisor does: while it was stopped, or the machine asleep."""

import time
from collections.abc import Callable

AWAY_SECONDS = 5.0  # between two looks: the supervisor was away, and cannot have heard its workers


class Clock:
    """Seconds, for deadlines. Time in which nobody read it for long counts for nobody.

    Args:
        now: a monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._last = now()
        self._away = 0.0

    def read(self) -> float:
        """The time."""
        now = self._now()
        if now - self._last > AWAY_SECONDS:
            self._away += now - self._last
        self._last = now
        return now - self._away
