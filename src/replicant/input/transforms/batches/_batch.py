"""Batches: batch, unbatch, and rebatch, which is both."""

import dataclasses
from typing import Any

import numpy as np

from ....errors import DatasetError, ElementError
from ...graph._blocks import Block, Dense
from ...graph._graph import INFINITE, UNKNOWN, Cursor, OneInput, State, Through, known, pull_exactly
from ...graph._structure import TensorSpec, component_names, flatten, map_leaves


@dataclasses.dataclass(frozen=True, eq=False)
class Batch(OneInput):
    """Stacks consecutive elements. Batch ``i`` takes ``sizes[i % len(sizes)]`` of them."""

    sizes: tuple[int, ...] = (1,)
    drop_remainder: bool = False

    @property
    def label(self) -> str:
        size = self.sizes[0] if len(self.sizes) == 1 else list(self.sizes)
        return f"batch({size}{', drop_remainder=True' if self.drop_remainder else ''})"

    @property
    def spec(self) -> Any:
        size = self.sizes[0] if self.drop_remainder and len(self.sizes) == 1 else None
        spec = self.input.spec
        return None if spec is None else map_leaves(lambda leaf: TensorSpec((size, *leaf.shape), leaf.dtype), spec)

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if not known(size):
            return size
        rounds, rest = divmod(size, sum(self.sizes))
        count = rounds * len(self.sizes)
        for batch_size in self.sizes:
            if rest < batch_size:
                return count + (rest > 0 and not self.drop_remainder)
            rest -= batch_size
            count += 1
        return count

    def stacked(self, block: Block) -> Any:
        """Return the batch of these elements."""
        return block.stack()

    def open(self, state: State | None = None) -> Cursor:
        return BatchCursor(self.input.open(state and state["source"]), self, state["made"] if state else 0)


class BatchCursor(Through):
    """Pulls exactly one batch at a time, and keeps nothing."""

    def __init__(self, source: Cursor, node: Batch, made: int) -> None:
        super().__init__(source)
        self.node, self.made = node, made

    def pull(self, limit: int) -> Block | None:
        one = self.pull_one()
        return None if one is None else Block.one(one[0])

    def pull_one(self) -> tuple[Any] | None:
        node = self.node
        size = node.sizes[self.made % len(node.sizes)]
        block = pull_exactly(self.source, size)
        if block is None or (node.drop_remainder and block.size < size):
            return None
        self.made += 1
        return (node.stacked(block),)

    def pull_run(self, count: int) -> tuple[Any, int] | None:
        node, left = self.node, self.node.input.cardinality
        if type(node) is not Batch or len(node.sizes) != 1 or left == UNKNOWN:
            return None
        size = node.sizes[0]
        if left != INFINITE and left // size < self.made + count:
            return None
        block = pull_exactly(self.source, count * size)
        assert block is not None, "the input has elements if it says so"
        assert block.size == count * size, "and as many as it says"
        self.made += count
        return block.stack(), size

    def skip(self, count: int) -> int:
        for skipped in range(count):
            size = self.node.sizes[self.made % len(self.node.sizes)]
            there = self.source.skip(size)
            if there == 0 or (self.node.drop_remainder and there < size):
                return skipped
            self.made += 1
        return count

    def reset(self) -> None:
        self.made = 0
        self.source.reset()

    def state(self) -> State:
        return {"made": self.made, "source": self.source.state()}


@dataclasses.dataclass(frozen=True, eq=False)
class Unbatch(OneInput):
    """The rows of every element."""

    @property
    def label(self) -> str:
        return "unbatch()"

    @property
    def spec(self) -> Any:
        spec = self.input.spec
        return None if spec is None else map_leaves(lambda leaf: TensorSpec(leaf.shape[1:], leaf.dtype), spec)

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if size == 0:
            return 0
        spec = self.input.spec
        rows = None if spec is None else {leaf.shape[0] for leaf in flatten(spec)[0] if leaf.shape}
        if not rows or None in rows:
            return UNKNOWN
        return size * rows.pop() if known(size) else size

    def open(self, state: State | None = None) -> Cursor:
        cursor = UnbatchCursor(self.input.open(state and state["source"]))
        if state:
            cursor.go_to(state["row"])
        return cursor


class UnbatchCursor(Through):
    """Holds one batch. Its position is where that batch began, and the row in it."""

    def __init__(self, source: Cursor) -> None:
        super().__init__(source)
        self._forget()

    def _forget(self) -> None:
        self.batch: Block | None = None
        self.row = 0
        self.before: State | None = None

    def _next_batch(self) -> bool:
        self.before = self.source.state()
        block = self.source.pull(1)
        self.batch, self.row = None if block is None else _rows_of(next(block.elements())), 0
        return self.batch is not None

    def go_to(self, row: int) -> None:
        """Read the batch at the source's position, and go to this row of it."""
        if row and self._next_batch():
            self.row = row

    def pull(self, limit: int) -> Block | None:
        while self.batch is None or self.row == self.batch.size:
            if not self._next_batch():
                return None
        stop = min(self.row + limit, self.batch.size)
        block = self.batch.take(slice(self.row, stop))
        self.row = stop
        return block

    def reset(self) -> None:
        self.source.reset()
        self._forget()

    def state(self) -> State:
        if self.batch is None or self.row == self.batch.size:
            return {"row": 0, "source": self.source.state()}
        return {"row": self.row, "source": self.before}


def _rows_of(element: Any) -> Block:
    """Return an element as a block of its rows.

    Raises:
        DatasetError: If a component is a scalar.
        ElementError: If the components have different numbers of rows.
    """
    leaves, structure = flatten(element)
    names = component_names(structure)
    for name, leaf in zip(names, leaves, strict=True):
        if np.ndim(leaf) == 0:
            raise DatasetError(f"unbatch: {name} is a scalar and has no rows. Call `unbatch` only on batches.")
    if len({len(leaf) for leaf in leaves}) > 1:
        sizes = ", ".join(f"{name} has {len(leaf)}" for name, leaf in zip(names, leaves, strict=True))
        raise ElementError(f"unbatch: all components need the same number of rows, but {sizes}.")
    return Block(structure, [Dense(leaf) for leaf in leaves], len(leaves[0]) if leaves else 0)
