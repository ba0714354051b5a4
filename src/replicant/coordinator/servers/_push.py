"""A push: changes of variables on one server that are applied together, and once. Large arrays travel in shared memory."""

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
    """An array in a push: its bytes, or where they start in the sender's outbox."""

    place: bytes | int
    dtype: str
    shape: tuple[int, ...]


class Change(NamedTuple):
    """The change of one shard.

    Attributes:
        rows: the rows to change, each once; None for all.
        share: the name of the divisor of this change, once it has been summed with those of other closures (see
            ``scheduling._merge``). Servers never see it.
    """

    shard: int
    values: Any
    rows: Any = None
    share: str | None = None


class Operation(NamedTuple):
    """Changes of one kind.

    Attributes:
        kind: "assign", "add", "multiply", "divide", "max", "min", or "apply" for gradients.
        rule: the number of the optimizer that applies the gradients or counts this step; -1 without one.
        step: the optimizer's step when the gradients were computed.
        learning_rate: the learning rate at that step.
        shares: what this closure adds to the divisors that its changes name.
    """

    kind: str
    changes: list[Change]
    rule: int = -1
    step: int = 0
    learning_rate: float = 0.0
    shares: tuple[tuple[str, float], ...] = ()


@dataclasses.dataclass(frozen=True)
class Push:
    """A push as it is sent. `seen` is how many updates the server had made when the push's values were read."""

    name: PushName
    attempt: int
    low_water: int
    seen: int
    outbox_bytes: int
    operations: list[Any]

    def __reduce__(self) -> Any:  # several times faster than the default for dataclasses
        return _push, (*self.name, self.attempt, self.low_water, self.seen, self.outbox_bytes, self.operations)


def _push(client: int, closure: int, sequence: int, *rest: Any) -> Push:
    return Push(PushName(client, closure, sequence), *rest)


class Outbox:
    """Memory through which one process sends arrays to one server."""

    def __init__(self, memory: Memory):
        self.memory = memory
        self._bytes = np.empty(0, np.uint8)
        self._used = 0
        self._views: dict[PackedArray, np.ndarray] = {}  # reused, since most pushes have the same arrays at the same places

    @property
    def nbytes(self) -> int:
        """How much of the memory this process has looked at."""
        return self._bytes.nbytes

    def see(self, nbytes: int) -> None:
        """Map the first `nbytes`, to which the sender has grown the memory."""
        if nbytes > self._bytes.nbytes:
            self._bytes = self.memory.view(0, nbytes)
            self._views.clear()

    def reserve(self, arrays: list[np.ndarray]) -> None:
        """Make room for these arrays, over those of the last push, which has been applied."""
        self._used = 0
        need = sum(_whole(a.nbytes) for a in arrays if a.nbytes > _INLINE_BYTES)
        if need > self._bytes.nbytes:
            size = pages(need + need // 4)
            self.memory.grow(size)
            self.see(size)

    def pack(self, array: np.ndarray) -> PackedArray:
        """Pack an array: a small one into the message, a large one into the outbox."""
        if array.nbytes <= _INLINE_BYTES:
            return PackedArray(array.tobytes(), _name(array.dtype), array.shape)
        packed = PackedArray(self._used, _name(array.dtype), array.shape)
        self._used += _whole(array.nbytes)
        np.copyto(self.unpack(packed), array)
        return packed

    def unpack(self, packed: PackedArray) -> np.ndarray:
        """The packed array, without a copy."""
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
    """Round `nbytes` up to where the next array may start."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def pack(operations: list[Operation], outbox: Outbox) -> list[Any]:
    """Pack operations into plain tuples, which pickle several times faster, with their arrays in the outbox."""
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
    """Unpack what `pack` returned, without a copy."""
    get = outbox.unpack
    return [
        Operation(kind, [Change(shard, get(values), None if rows is None else get(rows)) for shard, values, rows in changes], *rest)
        for changes, kind, *rest in packed
    ]


def num_bytes(operations: list[Operation]) -> int:
    """The number of bytes in all arrays."""
    return sum(c.values.nbytes + (0 if c.rows is None else c.rows.nbytes) for op in operations for c in op.changes)


def combine_rows(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort rows, and add up the values of repeated ones.

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
