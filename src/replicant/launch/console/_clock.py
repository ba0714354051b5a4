"""A clock that does not count the time for which the supervisor was stopped or the machine was asleep."""

import time
from collections.abc import Callable

AWAY_SECONDS = 5.0  # between two looks, after which the supervisor was away and cannot have heard its workers


class Clock:
    """A clock for deadlines, in seconds. If it was not read for a long time, that time does not count.

    Args:
        now: A monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._last = now()
        self._away = 0.0

    def read(self) -> float:
        """Return the time."""
        now = self._now()
        if now - self._last > AWAY_SECONDS:
            self._away += now - self._last
        self._last = now
        return now - self._away
