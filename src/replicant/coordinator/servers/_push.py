"""A push: changes of variables on one server that count together, and once. Large arrays travel in shared memory."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from ..wire._memory import Memory, pages
from ._ledger import PushName

_INLINE_BYTES = 1024  # smaller arrays travel in the message
_ALIGNMENT = 64
_MAX_VIEWS = 256


class PackedArray(NamedTuple):
    """An array in a push: its bytes, or where they begin in the sender's outbox."""

    place: bytes | int
    dtype: str
    shape: tuple[int, ...]


class Change(NamedTuple):
    """One shard's part.

    shard: its index. rows: which rows, no two alike; None for all. share: of changes that are made together with those of other
    functions, the name of what their sum is divided by (see ``scheduling._merge``); a server never sees it.
    """

    shard: int
    values: Any
    rows: Any = None
    share: str | None = None


class Operation(NamedTuple):
    """Changes of one kind.

    kind: "assign", "add", "multiply", "divide", "max", "min", or "apply" for gradients. rule: of an "apply", the number of the
    optimizer. step, learning_rate: what the worker saw when it computed the gradients. shares: what this function contributes to
    the divisors that its changes name.
    """

    kind: str
    changes: list[Change]
    rule: int = -1
    step: int = 0
    learning_rate: float = 0.0
    shares: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Push:
    """What is sent. seen: how many updates the server had made when the values were read."""

    name: PushName
    attempt: int
    low_water: int
    seen: int
    outbox_bytes: int
    operations: list[Any]

    def __reduce__(self) -> Any:  # several times as fast as what dataclasses have
        return _push, (*self.name, self.attempt, self.low_water, self.seen, self.outbox_bytes, self.operations)


def _push(client: int, closure: int, sequence: int, *rest: Any) -> Push:
    return Push(PushName(client, closure, sequence), *rest)


class Outbox:
    """Memory through which one process sends arrays to one server."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self._bytes = np.empty(0, np.uint8)
        self._used = 0
        self._views: dict[PackedArray, np.ndarray] = {}  # of arrays at places where some were before: mostly the same each time

    @property
    def nbytes(self) -> int:
        """How much memory is in use by anybody."""
        return self._bytes.nbytes

    def see(self, nbytes: int) -> None:
        """Look at the first `nbytes`, which the sender has made."""
        if nbytes > self._bytes.nbytes:
            self._bytes = self.memory.view(0, nbytes)
            self._views.clear()

    def reserve(self, arrays: list[np.ndarray]) -> None:
        """Make room for these arrays and forget what was there: the last push has been applied."""
        self._used = 0
        need = sum(_whole(a.nbytes) for a in arrays if a.nbytes > _INLINE_BYTES)
        if need > self._bytes.nbytes:
            size = pages(need + need // 4)
            self.memory.grow(size)
            self.see(size)

    def pack(self, array: np.ndarray) -> PackedArray:
        """Put an array in."""
        if array.nbytes <= _INLINE_BYTES:
            return PackedArray(array.tobytes(), _name(array.dtype), array.shape)
        packed = PackedArray(self._used, _name(array.dtype), array.shape)
        self._used += _whole(array.nbytes)
        np.copyto(self.unpack(packed), array)
        return packed

    def unpack(self, packed: PackedArray) -> np.ndarray:
        """The array: large ones lie in the outbox."""
        place, name, shape = packed
        if isinstance(place, bytes):
            return np.frombuffer(place, name).reshape(shape)
        view = self._views.get(packed)
        if view is None:
            dtype = np.dtype(name)
            nbytes = math.prod(shape) * dtype.itemsize
            view = self._bytes[place : place + nbytes].view(dtype).reshape(shape)
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            self._views[packed] = view
        return view


@functools.cache
def _name(dtype: np.dtype) -> str:
    return dtype.name


def _whole(nbytes: int) -> int:
    """`nbytes` rounded up to where the next array may begin."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def pack(operations: list[Operation], outbox: Outbox) -> list[Any]:
    """The operations with their arrays in the outbox, as plain tuples: those are pickled several times as fast."""
    outbox.reserve([x for op in operations for c in op.changes for x in (c.values, c.rows) if x is not None])
    put = outbox.pack
    return [
        (
            [(c.shard, tuple(put(c.values)), None if c.rows is None else tuple(put(c.rows))) for c in op.changes],
            op.kind,
            op.rule,
            op.step,
            op.learning_rate,
        )
        for op in operations
    ]


def unpack(packed: list[Any], outbox: Outbox) -> list[Operation]:
    """The inverse of `pack`, without a copy."""
    get = outbox.unpack
    return [
        Operation(kind, [Change(shard, get(values), None if rows is None else get(rows)) for shard, values, rows in changes], *rest)
        for changes, kind, *rest in packed
    ]


def num_bytes(operations: list[Operation]) -> int:
    """Bytes of all arrays."""
    return sum(c.values.nbytes + (0 if c.rows is None else c.rows.nbytes) for op in operations for c in op.changes)


def combine_rows(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row once, in order, with the sum of its values.

    >>> combine_rows(np.array([5, 2, 5]), np.array([[1.0], [2.0], [3.0]]))
    (array([2, 5]), array([[2.],
           [4.]]))
    """
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    first = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]])) if rows.size else np.empty(0, np.intp)
    if first.size == rows.size:
        return rows, values[order]
    return rows[first], np.add.reduceat(values[order], first, axis=0)
