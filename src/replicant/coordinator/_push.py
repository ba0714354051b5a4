"""A push: changes of variables on one server that count together, and once. Large arrays travel in shared memory."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from ._ledger import PushName
from ._memory import Memory, pages

_INLINE_BYTES = 1024  # smaller arrays travel in the message
_ALIGNMENT = 64


class Packed(NamedTuple):
    """An array in a push: its bytes, or where they begin in the sender's outbox."""

    place: bytes | int
    dtype: str
    shape: tuple[int, ...]


class Change(NamedTuple):
    """One shard's part. shard: its index. rows: which rows, no two alike; None for all."""

    shard: int
    values: Any
    rows: Any = None


class Operation(NamedTuple):
    """Changes of one kind.

    kind: "assign", "add", "multiply", "divide", "max", "min", or "apply" for gradients. rule: of an "apply", the number of the
    optimizer. step, learning_rate: what the worker saw when it computed the gradients.
    """

    kind: str
    changes: list[Change]
    rule: int = -1
    step: int = 0
    learning_rate: float = 0.0


@dataclasses.dataclass(frozen=True)
class Push:
    """What is sent. seen: how many updates the server had made when the values were read."""

    name: PushName
    attempt: int
    low_water: int
    seen: int
    outbox_bytes: int
    operations: list[Operation]


class Outbox:
    """Memory through which one process sends arrays to one server."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self._bytes = np.empty(0, np.uint8)
        self._used = 0

    @property
    def nbytes(self) -> int:
        """How much memory is in use by anybody."""
        return self._bytes.nbytes

    def see(self, nbytes: int) -> None:
        """Look at the first `nbytes`, which the sender has made."""
        if nbytes > self._bytes.nbytes:
            self._bytes = self.memory.view(0, nbytes)

    def reserve(self, arrays: list[np.ndarray]) -> None:
        """Make room for these arrays and forget what was there: the last push has been applied."""
        self._used = 0
        need = sum(-(-a.nbytes // _ALIGNMENT) * _ALIGNMENT for a in arrays if a.nbytes > _INLINE_BYTES)
        if need > self._bytes.nbytes:
            size = pages(need + need // 4)
            self.memory.grow(size)
            self._bytes = self.memory.view(0, size)

    def pack(self, array: np.ndarray) -> Packed:
        """Put an array in."""
        if array.nbytes <= _INLINE_BYTES:
            return Packed(array.tobytes(), array.dtype.name, array.shape)
        start = self._used
        self._used += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        np.copyto(self._bytes[start : start + array.nbytes].view(array.dtype).reshape(array.shape), array)
        return Packed(start, array.dtype.name, array.shape)

    def unpack(self, packed: Packed) -> np.ndarray:
        """The array: large ones lie in the outbox."""
        dtype = np.dtype(packed.dtype)
        if isinstance(packed.place, bytes):
            return np.frombuffer(packed.place, dtype).reshape(packed.shape)
        nbytes = math.prod(packed.shape) * dtype.itemsize
        return self._bytes[packed.place : packed.place + nbytes].view(dtype).reshape(packed.shape)


def pack(operations: list[Operation], outbox: Outbox) -> list[Operation]:
    """The operations with their arrays in the outbox."""
    arrays = [x for op in operations for c in op.changes for x in (c.values, c.rows) if x is not None]
    outbox.reserve(arrays)
    return [
        op._replace(
            changes=[Change(c.shard, outbox.pack(c.values), None if c.rows is None else outbox.pack(c.rows)) for c in op.changes]
        )
        for op in operations
    ]


def unpack(operations: list[Operation], outbox: Outbox) -> list[Operation]:
    """The inverse of `pack`, without a copy."""
    return [
        op._replace(
            changes=[
                Change(c.shard, outbox.unpack(c.values), None if c.rows is None else outbox.unpack(c.rows)) for c in op.changes
            ]
        )
        for op in operations
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
