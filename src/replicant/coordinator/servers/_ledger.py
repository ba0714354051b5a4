"""A server's books, in shared memory: which update each shard is at, and which pushes have been applied.

They outlive the server. Every update is written beside the old value (dense) or after the old rows were saved (rows), and counts
from one store of a number on. So whatever moment a server is killed at, its successor finds the state after some whole number of
pushes: none is lost and none is applied by half.

Order of one update, n the number of updates so far:

1. ``started`` of its shards + 1; new values go to each shard's other buffer; rows that change in place are saved, ``undo = n + 1``
2. the list of shards and the push's name go to the journal, then ``journal = n + 1``: from here on the update counts
3. ``done`` of its shards + 1, the push's name to the table of applied pushes, then ``updates = n + 1``

A successor repeats step 3 if ``journal > updates``, and otherwise puts saved rows back if ``undo > updates``. So does the server
itself when an update raises, whatever it raises: what failed is as if it had never begun.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import ParameterServerError

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


_AT = {name: offset // 8 for name, (_, offset, *_) in (_BOOKS.fields or {}).items()}  # the number of a field's first cell
_UPDATES, _JOURNAL, _UNDO, _PUSH, _SHARDS = (_AT[name] for name in ("updates", "journal", "undo", "journal_push", "journal_shards"))
_DONE, _STARTED, _APPLIED = (_AT[name] for name in ("done", "started", "applied"))


class Ledger:
    """The books of one server, over `memory` of NBYTES. Servers write them; everybody reads them.

    All is in cells of 8 bytes, read and written one by one: a step does so some dozens of times, and NumPy takes longer.
    """

    def __init__(self, memory: np.ndarray):
        self._cells = memory[:NBYTES].data.cast("Q")
        books = memory[:NBYTES].view(_BOOKS)[0]
        self._applied: np.ndarray = books["applied"]
        self.started = self._cells[_STARTED : _STARTED + MAX_SHARDS]
        self.done = self._cells[_DONE : _DONE + MAX_SHARDS]
        self.in_place = self._cells[_AT["in_place"] : _AT["in_place"] + MAX_SHARDS]
        self.staleness: np.ndarray = books["staleness"]
        self._rows: dict[int, int] = {}

    @property
    def updates(self) -> int:
        """How many pushes have been applied."""
        return self._cells[_UPDATES]

    @property
    def duplicates(self) -> int:
        """How many pushes were left out because they had been applied before."""
        return self._cells[_AT["duplicates"]]

    @property
    def pushed_bytes(self) -> int:
        """Bytes of all pushes."""
        return self._cells[_AT["pushed_bytes"]]

    def has_applied(self, push: PushName) -> bool:
        """Whether a push of this closure and number was applied, whoever sent it."""
        table = self._applied
        return bool(np.any((table[:, 1] == push.closure) & (table[:, 2] >= push.sequence)))

    def count_duplicate(self) -> None:
        """Note that a push was left out."""
        self._cells[_AT["duplicates"]] += 1

    def note_undo(self, nbytes: int) -> None:
        """The rows that are about to change have been saved, in `nbytes`."""
        self._cells[_AT["undo_bytes"]] = nbytes
        self._cells[_UNDO] = self.updates + 1

    def commit(self, shards: Sequence[int], push: PushName, low_water: int, *, staleness: int = 0, nbytes: int = 0) -> None:
        """The new values of `shards` are complete: from now on they count."""
        cells = self._cells
        for i, shard in enumerate(shards, _SHARDS):
            cells[i] = shard
        cells[_AT["journal_length"]] = len(shards)
        cells[_AT["journal_row"]] = self._row(push.client, low_water)
        for i, part in enumerate(push, _PUSH):
            cells[i] = part
        cells[_JOURNAL] = cells[_UPDATES] + 1
        self._finish()
        cells[_AT["pushed_bytes"]] += nbytes
        if push.client:
            self.staleness[min(staleness, STALENESS_BINS - 1)] += 1

    def _finish(self) -> None:
        cells, done, started = self._cells, self.done, self.started
        for i in range(_SHARDS, _SHARDS + cells[_AT["journal_length"]]):
            done[cells[i]] = started[cells[i]]
        row = _APPLIED + 3 * cells[_AT["journal_row"]]
        for i in range(3):
            cells[row + i] = cells[_PUSH + i]
        cells[_UPDATES] = cells[_JOURNAL]

    def _row(self, client: int, low_water: int) -> int:
        """The client's row in the table of applied pushes: its own, or one whose closure has ended for good."""
        known = self._rows.get(client)
        if known is not None and self._cells[_APPLIED + 3 * known] == client:
            return known
        own = np.flatnonzero(self._applied[:, 0] == client)
        if not own.size:
            own = np.flatnonzero(self._applied[:, 1] < low_water + 1)
        if not own.size:
            raise ParameterServerError(
                f"A server remembers the last push of {MAX_CLIENTS} workers, and all of their closures are still unfinished. "
                "More workers than that were lost while the same closures ran: call join() now and then."
            )
        self._rows[client] = int(own[0])
        return int(own[0])

    def recover(self) -> int:
        """After an update did not come to its end: finish it if it counts. Returns how many bytes of saved rows must be put back.

        Call `settle` once they are.
        """
        cells, restore = self._cells, 0
        if cells[_JOURNAL] > cells[_UPDATES]:
            self._finish()
        elif cells[_UNDO] > cells[_UPDATES]:
            restore = cells[_AT["undo_bytes"]]
        self.started[:] = self.done
        return restore

    def settle(self) -> None:
        """After rows were put back: what was saved of them counts no more, and nobody is writing in place."""
        self._cells[_UNDO] = 0  # else, were the server killed while it saves the next rows, those would be put back by halves
        for shard, count in enumerate(self.in_place):
            if count & 1:
                self.in_place[shard] = count + 1
