"""A server's books, in shared memory: which update each shard is at, and which pushes have been applied.

They outlive the server. Every update is written beside the old value (dense) or after the old rows were saved (rows), and counts
from one store of a number on. So whatever moment a server is killed at, its successor finds the state after some whole number of
pushes: none is lost and none is applied by half.

Order of one update, n the number of updates so far:

1. ``started`` of its shards + 1; new values go to each shard's other buffer; rows that change in place are saved, ``undo = n + 1``
2. the list of shards and the push's name go to the journal, then ``journal = n + 1``: from here on the update counts
3. ``done`` of its shards + 1, the push's name to the table of applied pushes, then ``updates = n + 1``

A successor repeats step 3 if ``journal > updates``, and otherwise puts saved rows back if ``undo > updates``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import ParameterServerError

MAX_SHARDS = 8192
MAX_CLIENTS = 1024
STALENESS_BINS = 64

_BOOKS = np.dtype(
    [
        ("updates", "u8"),
        ("journal", "u8"),
        ("undo", "u8"),
        ("undo_bytes", "u8"),
        ("duplicates", "u8"),
        ("pushed_bytes", "u8"),
        ("journal_row", "u8"),
        ("journal_push", "u8", 3),
        ("journal_length", "u8"),
        ("journal_shards", "u8", MAX_SHARDS),
        ("started", "u8", MAX_SHARDS),
        ("done", "u8", MAX_SHARDS),
        ("in_place", "u8", MAX_SHARDS),
        ("applied", "u8", (MAX_CLIENTS, 3)),
        ("staleness", "u8", STALENESS_BINS),
    ]
)
NBYTES = _BOOKS.itemsize


class PushName(NamedTuple):
    """What makes a push one of its kind: the closure and the number of the push in it, whichever worker and attempt sends it.

    client: which process sent it, 0 for the coordinator. closure: its number + 1.
    sequence: 1, 2, ... within the closure.
    """

    client: int
    closure: int
    sequence: int


class Ledger:
    """The books of one server, over `memory` of NBYTES. Servers write them; everybody reads them."""

    def __init__(self, memory: np.ndarray):
        books = memory[:NBYTES].view(_BOOKS)[0]
        self._books = books
        self.started: np.ndarray = books["started"]
        self.done: np.ndarray = books["done"]
        self.in_place: np.ndarray = books["in_place"]
        self._applied: np.ndarray = books["applied"]
        self.staleness: np.ndarray = books["staleness"]

    @property
    def updates(self) -> int:
        """How many pushes have been applied."""
        return int(self._books["updates"])

    @property
    def duplicates(self) -> int:
        """How many pushes were left out because they had been applied before."""
        return int(self._books["duplicates"])

    @property
    def pushed_bytes(self) -> int:
        """Bytes of all pushes."""
        return int(self._books["pushed_bytes"])

    def has_applied(self, push: PushName) -> bool:
        """Whether a push of this closure and number was applied, whoever sent it."""
        table = self._applied
        return bool(np.any((table[:, 1] == push.closure) & (table[:, 2] >= push.sequence)))

    def count_duplicate(self) -> None:
        """Note that a push was left out."""
        self._books["duplicates"] += 1

    def note_undo(self, nbytes: int) -> None:
        """The rows that are about to change have been saved, in `nbytes`."""
        self._books["undo_bytes"] = nbytes
        self._books["undo"] = self.updates + 1

    def commit(self, shards: Sequence[int], push: PushName, low_water: int, *, staleness: int = 0, nbytes: int = 0) -> None:
        """The new values of `shards` are complete: from now on they count."""
        books, length = self._books, len(shards)
        books["journal_shards"][:length] = shards
        books["journal_length"] = length
        books["journal_row"] = self._row(push.client, low_water)
        books["journal_push"][:] = push
        books["journal"] = self.updates + 1
        self._finish()
        books["pushed_bytes"] += nbytes
        if push.client:
            self.staleness[min(staleness, STALENESS_BINS - 1)] += 1

    def _finish(self) -> None:
        books = self._books
        for shard in books["journal_shards"][: int(books["journal_length"])]:
            self.done[shard] = self.started[shard]
        self._applied[int(books["journal_row"])] = books["journal_push"]
        books["updates"] = books["journal"]

    def _row(self, client: int, low_water: int) -> int:
        """The client's row in the table of applied pushes: its own, or one whose closure has ended for good."""
        own = np.flatnonzero(self._applied[:, 0] == client)
        if own.size:
            return int(own[0])
        free = np.flatnonzero(self._applied[:, 1] < low_water + 1)
        if not free.size:
            raise ParameterServerError(
                f"A server remembers the last push of {MAX_CLIENTS} workers, and all of their closures are still unfinished. "
                "More workers than that were lost while the same closures ran: call join() now and then."
            )
        return int(free[0])

    def recover(self) -> int:
        """Bring the books in order after the server was killed. Returns how many bytes of saved rows must be put back."""
        books, restore = self._books, 0
        if books["journal"] > books["updates"]:
            self._finish()
        elif books["undo"] > books["updates"]:
            restore = int(books["undo_bytes"])
        self.started[:] = self.done
        return restore

    def settle_rows(self) -> None:
        """After rows were put back: nobody is writing in place."""
        self.in_place += self.in_place & np.uint64(1)
