"""A server's ledger, in shared memory: how many updates each shard has had, and which pushes have been applied.

The ledger outlives the server. A dense update is written beside the old value; an update of rows is written after the old rows
were saved. Storing one number makes the update count. So whenever a server is killed, its successor finds the state after some
whole number of pushes: none is lost, and none is applied in part.

The order of one update, with n updates before it:

1. Add 1 to ``started`` of its shards. Write new values to their other buffers. Save rows that change in place: ``undo = n + 1``.
2. Write the list of shards and the push's name to the journal, then ``journal = n + 1``. From here on the update counts.
3. Add 1 to ``done`` of its shards. Write the push's name to the table of applied pushes, then ``updates = n + 1``.

A successor repeats step 3 if ``journal > updates``; otherwise it restores the saved rows if ``undo > updates``. The server itself
does the same when an update raises, so a failed update leaves no trace.
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
    """Names a push. Closure and sequence identify it, whichever worker and attempt sends it.

    Attributes:
        client: the process that sent it; 0 is the coordinator.
        closure: the closure's number + 1.
        sequence: 1, 2, ... within the closure.
    """

    client: int
    closure: int
    sequence: int


_AT = {name: offset // 8 for name, (_, offset, *_) in (_BOOKS.fields or {}).items()}  # the index of a field's first cell
_UPDATES, _JOURNAL, _UNDO, _PUSH, _SHARDS = (_AT[name] for name in ("updates", "journal", "undo", "journal_push", "journal_shards"))
_DONE, _STARTED, _APPLIED = (_AT[name] for name in ("done", "started", "applied"))


class Ledger:
    """The ledger of one server, over `memory` of NBYTES. Its server writes it; all processes read it.

    It consists of cells of 8 bytes, which are read and written one by one. A step does this dozens of times, and NumPy is slower.
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
        """How many pushes were skipped because they had already been applied."""
        return self._cells[_AT["duplicates"]]

    @property
    def pushed_bytes(self) -> int:
        """The number of bytes in all pushes."""
        return self._cells[_AT["pushed_bytes"]]

    def has_applied(self, push: PushName) -> bool:
        """Whether a push of this closure and sequence was applied, whichever client sent it."""
        table = self._applied
        return bool(np.any((table[:, 1] == push.closure) & (table[:, 2] >= push.sequence)))

    def count_duplicate(self) -> None:
        """Count a push that was skipped."""
        self._cells[_AT["duplicates"]] += 1

    def note_undo(self, nbytes: int) -> None:
        """Note that the rows about to change have been saved, in `nbytes`."""
        self._cells[_AT["undo_bytes"]] = nbytes
        self._cells[_UNDO] = self.updates + 1

    def commit(self, shards: Sequence[int], push: PushName, low_water: int, *, staleness: int = 0, nbytes: int = 0) -> None:
        """Make the new values of `shards`, which are complete, count from now on."""
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
        """The client's row in the table of applied pushes: its own, or that of a closure which has ended for good."""
        known = self._rows.get(client)
        if known is not None and self._cells[_APPLIED + 3 * known] == client:
            return known
        own = np.flatnonzero(self._applied[:, 0] == client)
        if not own.size:
            own = np.flatnonzero(self._applied[:, 1] < low_water + 1)
        if not own.size:
            raise ParameterServerError(
                f"A server remembers the last push of {MAX_CLIENTS} workers, and all of their closures are still unfinished, since "
                "more workers than that were lost while these closures ran. Call join() now and then."
            )
        self._rows[client] = int(own[0])
        return int(own[0])

    def recover(self) -> int:
        """Finish an interrupted update if it counts. Returns how many bytes of saved rows must be restored.

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
        """After the rows were restored: discard the saved ones, and note that nothing is being written in place."""
        self._cells[_UNDO] = 0  # otherwise a server killed while saving the next rows would have some of them restored
        for shard, count in enumerate(self.in_place):
            if count & 1:
                self.in_place[shard] = count + 1
