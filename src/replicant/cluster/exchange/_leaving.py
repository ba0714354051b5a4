"""How workers leave together, after the same step, when one of them was asked to leave.

A worker may be a few steps behind another one, and within a step it waits for the others. So when one of them is asked to leave,
the watching threads say how many calls of `Leaving.leaves_now` each worker has made. The next call of each worker waits for these
numbers, and all workers leave one step after the greatest of them.
"""

import threading
import time

from ._exchange import Exchange
from ._fates import Fates
from ._gathering import Gathering


class Leaving:
    """What is known about a request to leave.

    Args:
        fates: What became of each worker, and who was asked to leave.
        exchange: How long the workers wait for each other.
        calls: How many calls each worker has made when it gets to know of a request.
    """

    def __init__(self, fates: Fates, exchange: Exchange, calls: Gathering):
        self._fates, self._exchange, self._calls = fates, exchange, calls
        self._lock = threading.Lock()
        self._num_calls = 0  # number of calls of `leaves_now`
        self._is_told = False  # whether this worker has told the others that it was asked
        self._is_known = False  # whether it is known that any worker was asked
        self._at: int | None = None  # `_num_calls` when this became known, until the others can read it
        self._last: int | None = None  # the call after which all leave

    def leaves_now(self, asked: bool) -> bool:
        """Find out whether to leave now. All workers call this between two steps, the same number of times.

        Args:
            asked: Whether this worker was asked to leave.

        Returns:
            True after the same step on all workers, once one of them was asked to leave.

        Raises:
            WorkerLostError: If a worker does not say how many calls it has made.
        """
        with self._lock:
            self._num_calls += 1
            count, is_known = self._num_calls, self._is_known
        if asked and not self._is_told:
            self._is_told = True
            with self._fates.explained("could not talk to the others"):
                self._fates.report_request()
        if is_known and self._last is None:
            limit = self._exchange.seconds
            self._last = 1 + max(map(int, self._exchange.wait(self._calls, "leaving", limit, time.monotonic() + limit)))
        return self._last is not None and count >= self._last

    def tell_where(self) -> None:
        """Say how many calls this worker has made, once any worker was asked to leave.

        The watching thread calls this again until it succeeds.
        """
        if not self._is_known:
            with self._lock:
                self._is_known, self._at = True, self._num_calls
        if self._at is not None:
            if self._calls.try_put(str(self._at)):
                self._at = None
        elif self._calls.is_uncounted:
            self._calls.gather()
