"""How long each function takes on each worker, so that several short closures can be sent at once."""

from ._queue import UNKNOWN_SECONDS


class Pace:
    """Estimates the seconds that a function takes on a worker: rises at once, and falls gradually.

    >>> pace = Pace()
    >>> for seconds in (0.5, 0.001, 0.001):
    ...     pace.note(1, 0, seconds)
    >>> round(pace.seconds(1, 0), 3)
    0.32
    """

    def __init__(self) -> None:
        self._seconds: dict[int, dict[int, float]] = {}

    def note(self, worker: int, function: int, seconds: float) -> None:
        """Note that `function` took `seconds` on `worker`."""
        known = self._seconds.setdefault(worker, {})
        before = known.get(function, seconds)
        known[function] = seconds if seconds >= before else 0.8 * before + 0.2 * seconds

    def seconds(self, worker: int, function: int) -> float:
        """How long `function` will probably take on `worker` next time."""
        return self._seconds.get(worker, {}).get(function, UNKNOWN_SECONDS)

    def forget(self, worker: int) -> None:
        """Forget a lost worker."""
        self._seconds.pop(worker, None)
