"""Batches that the loop makes itself when it asks for them, because a thread would take longer to hand them over.

The thread that reads ahead and the loop both need Python's lock. If a batch is a few rows of arrays in memory, and its devices are
this machine's processors, the exchange between the two takes several times as long as the batch.

Of tiny batches, some are read at once. That takes half of the time.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from ...errors import DatasetError
from ...replicas._own_mesh import mesh_is_set
from ..graph._background import END, Background, check_process
from ..graph._graph import Node, State, nodes
from ..sources._sources import Range, Rows
from ..transforms.batches._batch import Batch, Unbatch
from ..transforms.elements._index import Enumerate, Repeat, Shard, Skip, Take
from ..transforms.mixtures._combine import Concatenate, Zip
from ..transforms.order._global_shuffle import GlobalShuffle
from ..transforms.order._shuffle import Shuffle
from ._shares import Run, ShareCursor

MOST_BYTES = 1 << 19  # larger batches take so long that it is worth while to read them ahead
SECONDS = 1e-3  # of processor time: the longest that a batch may usually take
_MOST_DEBT = 8.0
_MOST_AT_ONCE = 2.0
RUN = 8  # batches that are read at once, if all of them
_RUN_BYTES = 1 << 18  # are no larger than this,
_RUNS_AFTER = 256  # after so many batches of a dataset: whoever reads fewer of them gets each when it is asked for
_TIMED = 32  # batches whose processor time is read, which takes a while, after one that was slow by the clock

# They only move memory: no files, no code of the user, nothing that waits. Types that are derived from these may do so.
_IN_MEMORY = frozenset(
    {Batch, Concatenate, Enumerate, GlobalShuffle, Range, Repeat, Rows, Shard, Shuffle, Skip, Take, Unbatch, Zip}
)


class PlaceAtOnce(Protocol):
    """Places all components of a batch at once."""

    def __call__(self, parts: Sequence[tuple[Any, ...]]) -> list[Any] | None:
        """Place the components, given the arguments for each. Returns None if that must be done one by one."""
        ...

    def run(self, columns: Sequence[np.ndarray], count: int, sizes: tuple[int, ...]) -> Sequence[Sequence[Any]] | None:
        """Place `count` batches that were read at once. Returns None if that must be done batch by batch."""
        ...


_config: Any = jax.config  # its options are attributes that type checkers do not know
_WIDE = _config.jax_enable_x64  # outside of all contexts


class OneByOne:
    """Places no batch at once, but component by component."""

    def __call__(self, parts: Sequence[tuple[Any, ...]]) -> None:
        """Leave it to the caller."""
        del parts

    def run(self, columns: Sequence[np.ndarray], count: int, sizes: tuple[int, ...]) -> None:
        """Leave it to the caller."""
        del columns, count, sizes


def only_moves_memory(sources: Sequence[Node]) -> bool:
    """Whether these graphs have nothing but arrays in memory, and choose, order and stack their rows."""
    return all(
        type(node) in _IN_MEMORY and not (isinstance(node, Rows) and any(map(_is_mapped, node.tables)))
        for source in sources
        for node in nodes(source)
    )


def _is_mapped(array: Any) -> bool:
    """Whether an array lies in a file, whose pages may have to be read first."""
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


class Pace:
    """How long the batches of one dataset take. Once they are known to be slow, a thread reads them, in later passes too.

    Args:
        place: Places the components of a batch.
    """

    def __init__(self, place: PlaceAtOnce) -> None:
        self.place = place
        self.is_slow = False
        self.is_sized = False
        self._are_small = False
        self._num_placed = 0  # batches, all components at once
        self._debt = 0.0
        self._to_time = 0

    def size(self, num_bytes: int) -> None:
        """Note the size of the first batch."""
        self.is_sized = True
        self.is_slow = num_bytes > MOST_BYTES
        self._are_small = RUN * num_bytes <= _RUN_BYTES

    @property
    def in_runs(self) -> bool:
        """Whether several batches are read at once."""
        return self._are_small and self._num_placed >= _RUNS_AFTER

    def placed(self) -> None:
        """Note that all components of a batch were placed at once."""
        self._num_placed += 1

    def clock(self) -> Callable[[], float]:
        """Return the clock that measures the next batch."""
        return time.thread_time if self._to_time else time.perf_counter

    def measured(self, clock: Callable[[], float], seconds: float) -> None:
        """Note how long a batch took. What is quick by the usual clock is quick, and its processor time need not be read."""
        if clock is time.perf_counter:
            if seconds > SECONDS:
                self._to_time = _TIMED
        else:
            self._to_time = max(0, self._to_time - 1)
            self.note(seconds)

    def note(self, seconds: float) -> None:
        """Note the processor time of one batch. A few slow ones, or one very slow one, do not matter."""
        self._debt = max(0.0, self._debt + min(seconds / SECONDS - 1, _MOST_AT_ONCE))
        if self._debt > 0:
            self._to_time = _TIMED
        if self._debt > _MOST_DEBT:
            self.is_slow = True


class Direct:
    """Makes each result when it is asked for, until they prove to be slow. From then on, a thread makes them.

    An exception in the middle leaves a cursor in an unknown state: Ctrl-C, or what a signal handler raises. The next call then
    opens another cursor after the last result.

    Args:
        cursor: The position.
        reopen: Opens a cursor at a position.
        thread: Makes the thread that continues with a cursor.
        pace: Decides when to change to the thread.
    """

    def __init__(
        self,
        cursor: ShareCursor,
        reopen: Callable[[State], ShareCursor],
        thread: Callable[[ShareCursor], Background],
        pace: Pace,
    ) -> None:
        self._cursor, self._reopen, self._thread, self._pace = cursor, reopen, thread, pace
        self._state = cursor.state()
        self._background: Background | None = None
        self._ready: deque[Any] = deque()  # results of a run
        self._singly = 0  # results that were made one by one, in this pass
        self._is_making = self._is_closed = False
        self._lock = threading.RLock()  # re-entrant, because a signal handler may run at any point
        self._process = os.getpid()

    def next(self) -> Any:
        """Return the next result, or `END`, as `Background.next` does."""
        if self._background is None:
            check_process(self._process)
            with self._lock:  # released before a thread is asked, for which others may wait
                while self._background is None and not self._is_closed:
                    if self._ready:
                        item = self._ready.popleft()
                        self._state = item[-1]
                        return item
                    if self._pace.is_slow or _in_context():
                        self._background = self._thread(self._settled())
                        if self._is_closed:  # by another thread, which may not have seen this one's
                            self._background.close()
                        break
                    cursor, clock = self._settled(), self._pace.clock()
                    began, in_run = clock(), self._singly >= RUN and self._pace.in_runs
                    self._is_making = True
                    try:
                        items = self._make(cursor, in_run)
                    except DatasetError:
                        if not in_run:
                            raise
                        self._singly = -RUN  # one by one, the error comes with its batch
                        continue
                    if cursor is not self._cursor:  # a signal handler has asked meanwhile, and got these results
                        continue
                    self._ready.extend(items)
                    self._is_making = False
                    if not items:
                        return END
                    self._pace.measured(clock, (clock() - began) / len(items))
        return END if self._background is None else self._background.next()

    def _make(self, cursor: ShareCursor, in_run: bool) -> list[Any]:
        """Return the next results: one, or a run of them, or none at the end."""
        run = cursor.next_run(RUN) if in_run else None
        return self._one(cursor) if run is None else self._of_run(run)

    def _of_run(self, run: Run) -> list[Any]:
        placed = self._pace.place.run(run.columns, run.count, run.sizes) or [run.placed(i) for i in range(run.count)]
        rows = sum(run.sizes)
        return [
            (jax.tree_util.tree_unflatten(run.structure, leaves), rows, run.after(i)) for i, leaves in enumerate(placed, start=1)
        ]

    def _one(self, cursor: ShareCursor) -> list[Any]:
        """Return the next result, or nothing at the end."""
        share = cursor.next()
        if share is None:
            return []
        pace = self._pace
        if not pace.is_sized:
            pace.size(share.num_bytes)
        placed = pace.place(share.parts)
        if placed is None:
            element = share.placed()
        else:
            pace.placed()
            element = jax.tree_util.tree_unflatten(share.structure, placed)
        self._singly += 1
        return [(element, share.num_examples, cursor.state())]

    def _settled(self) -> ShareCursor:
        """Return a cursor after the last result."""
        if self._is_making:
            self._cursor = self._reopen(self._state)
            self._is_making = False
        return self._cursor

    @property
    def num_ready(self) -> int:
        """The number of results that wait for the consumer."""
        return len(self._ready) if self._background is None else self._background.num_ready

    def close(self) -> None:
        """Be at the end from now on, and end the thread if there is one."""
        self._is_closed = True
        if self._background is not None:
            self._background.close()
        else:
            self._cursor.close()


def _in_context() -> bool:
    """Whether JAX would place a batch otherwise than on a thread of its own, which knows no contexts of the caller's."""
    return bool(
        mesh_is_set()
        or _config.jax_enable_x64 != _WIDE
        or _config.jax_transfer_guard_host_to_device is not None
        or _config.jax_disable_jit
        or _config.jax_debug_nans
        or _config.jax_debug_infs
    )
