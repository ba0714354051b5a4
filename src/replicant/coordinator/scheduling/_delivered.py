"""What each worker has been sent already: functions and parcels travel to a worker once, however often they are used."""

import collections
import contextlib
import weakref
from collections.abc import Iterable

from ..processes._member import Member
from ..wire._channel import Closed
from ..workers._pickling import Packed, Parcel


class Delivered:
    """By client number. All methods are called under the dispatcher's lock."""

    def __init__(self) -> None:
        self._functions: dict[int, set[int]] = {}
        self._parcels: dict[int, set[int]] = {}
        self._watched: set[int] = set()
        self._gone: collections.deque[int] = collections.deque()  # parcels that nobody holds here any more

    def __contains__(self, worker: Member) -> bool:
        return worker.client in self._functions

    def join(self, worker: Member) -> None:
        """A worker that has nothing yet."""
        self._functions[worker.client], self._parcels[worker.client] = set(), set()

    def leave(self, worker: Member) -> None:
        """A worker that is no more."""
        self._functions.pop(worker.client, None)
        self._parcels.pop(worker.client, None)

    def send_function(self, worker: Member, number: int, function: Packed) -> None:
        """Send a function and its parcels, unless the worker has them."""
        self.send_parcels(worker, function.parcels)
        if number not in self._functions[worker.client]:
            worker.control.post(("function", number, function.data))
            self._functions[worker.client].add(number)

    def send_parcels(self, worker: Member, parcels: Iterable[Parcel]) -> None:
        """Send those that the worker does not have, those inside of them first."""
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
        """Tell the workers what nobody here can name any more: parcels, and these functions, whose list is emptied."""
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
                with contextlib.suppress(Closed):  # noticed by the cluster
                    worker.control.post((order, number))
