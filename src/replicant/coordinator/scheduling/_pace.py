"""How long functions take on workers, so that short ones can be sent several at once."""

from ._queue import UNKNOWN_SECONDS


class Pace:
    """Seconds of each function on each worker: more is believed at once, less bit by bit.

    >>> pace = Pace()
    >>> for seconds in (0.5, 0.001, 0.001):
    ...     pace.note(1, 0, seconds)
    >>> round(pace.seconds(1, 0), 3)
    0.32
    """

    def __init__(self) -> None:
        self._seconds: dict[int, dict[int, float]] = {}

    def note(self, worker: int, function: int, seconds: float) -> None:
        """A function has ended."""
        known = self._seconds.setdefault(worker, {})
        before = known.get(function, seconds)
        known[function] = seconds if seconds >= before else 0.8 * before + 0.2 * seconds

    def seconds(self, worker: int, function: int) -> float:
        """What it will probably take next time."""
        return self._seconds.get(worker, {}).get(function, UNKNOWN_SECONDS)

    def forget(self, worker: int) -> None:
        """A worker is gone."""
        self._seconds.pop(worker, None)
