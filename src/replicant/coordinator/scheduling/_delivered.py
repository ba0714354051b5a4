"""What each worker has already been sent: each function and parcel travels to a worker once, however often it is used."""

import collections
import contextlib
import weakref
from collections.abc import Iterable

from ..processes._member import Member
from ..wire._channel import Closed
from ..workers._pickling import Packed, Parcel


class Delivered:
    """Tracks what was sent, by client number. Hold the dispatcher's lock around every call."""

    def __init__(self) -> None:
        self._functions: dict[int, set[int]] = {}
        self._parcels: dict[int, set[int]] = {}
        self._watched: set[int] = set()
        self._gone: collections.deque[int] = collections.deque()  # parcels that nothing refers to here any more

    def __contains__(self, worker: Member) -> bool:
        return worker.client in self._functions

    def join(self, worker: Member) -> None:
        """Add a worker, which has nothing yet."""
        self._functions[worker.client], self._parcels[worker.client] = set(), set()

    def leave(self, worker: Member) -> None:
        """Forget a lost worker."""
        self._functions.pop(worker.client, None)
        self._parcels.pop(worker.client, None)

    def send_function(self, worker: Member, number: int, function: Packed) -> None:
        """Send a function and its parcels, unless the worker already has them."""
        self.send_parcels(worker, function.parcels)
        if number not in self._functions[worker.client]:
            worker.control.post(("function", number, function.data))
            self._functions[worker.client].add(number)

    def send_parcels(self, worker: Member, parcels: Iterable[Parcel]) -> None:
        """Send the parcels that the worker lacks, the parcels inside each of them first."""
        known = self._parcels[worker.client]
        for parcel in parcels:
            if parcel.number in known:
                continue
            packed = parcel.packed()
            self.send_parcels(worker, packed.parcels)
            worker.control.post(("parcel", parcel.number, packed.data))
            known.add(parcel.number)
            if parcel.number not in self._watched:
                self._watched.add(parcel.number)
                weakref.finalize(parcel, self._gone.append, parcel.number).atexit = False

    def drop_gone(self, workers: Iterable[Member], functions: list[int]) -> None:
        """Tell workers to forget unreferenced parcels and the functions in `functions`, which is emptied."""
        while functions:
            self._drop("forget", functions.pop(), workers, self._functions)
        while self._gone:
            number = self._gone.popleft()
            self._watched.discard(number)
            self._drop("drop", number, workers, self._parcels)

    def _drop(self, order: str, number: int, workers: Iterable[Member], known: dict[int, set[int]]) -> None:
        for worker in workers:
            if number in known[worker.client]:
                known[worker.client].discard(number)
                with contextlib.suppress(Closed):  # the cluster notices
                    worker.control.post((order, number))
