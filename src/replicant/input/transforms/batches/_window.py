"""Windows: runs of elements, each as a small dataset."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...graph._blocks import Block, Boxed, Column, concatenate
from ...graph._graph import After, Cursor, Node, OneInput, State, known, pull_exactly
from ...graph._structure import DatasetSpec, map_leaves
from ...sources._sources import Numbered

MakeDataset = Callable[[Node], Any]
EMPTY = Block(jax.tree_util.tree_structure(()), [], 0)


@dataclasses.dataclass(frozen=True, eq=False)
class Held(Numbered):
    """Elements in memory."""

    block: Block = EMPTY
    spec: Any = None

    @property
    def label(self) -> str:
        return f"window of {self.size}"

    @property
    def structure(self) -> Any:
        return self.block.structure

    def chosen(self, numbers: np.ndarray) -> list[Column]:
        return [column.with_refs(column.refs[numbers]) for column in self.block.columns]


def held(block: Block, spec: Any) -> Held:
    """Return a source of the elements of a block."""
    return Held(size=block.size, block=block, spec=spec)


@dataclasses.dataclass(frozen=True, eq=False)
class Window(OneInput):
    """Window i holds ``size`` elements, ``stride`` apart, from element ``i * shift`` on.

    Each component of an element becomes a dataset of its own, which ``make_dataset`` makes of a node.
    """

    make_dataset: MakeDataset
    size: int = 1
    shift: int = 1
    stride: int = 1
    drop_remainder: bool = False

    @property
    def label(self) -> str:
        drop = ", drop_remainder=True" if self.drop_remainder else ""
        return f"window({self.size}, shift={self.shift}, stride={self.stride}{drop})"

    @property
    def spec(self) -> Any:
        spec = self.input.spec
        return None if spec is None else map_leaves(DatasetSpec, spec)

    @property
    def reach(self) -> int:
        """The number of elements from the first to the last of a whole window."""
        return (self.size - 1) * self.stride + 1

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if not known(size):
            return size
        if self.drop_remainder:
            return max(0, (size - self.reach) // self.shift + 1)
        return -(-size // self.shift)

    def open(self, state: State | None = None) -> Cursor:
        return WindowCursor(self.input.open(state and state["source"]), self, state["offset"] if state else 0)

    def windows(self, block: Block, spec: Any) -> Block:
        """Return the element that holds these elements as datasets."""
        specs = jax.tree_util.tree_leaves(spec)
        leaf = jax.tree_util.tree_structure(0)
        parts = [Block(leaf, [column], block.size) for column in block.columns]
        made = [self.make_dataset(held(part, its)) for part, its in zip(parts, specs, strict=True)]
        return Block(block.structure, [Boxed.of([each]) for each in made], 1)


class WindowCursor(After):
    """Holds the elements of the last window that the next ones need.

    The position is where the held elements begin in the source, and the number of elements from there to the next window.
    """

    def __init__(self, source: Cursor, node: Window, to_skip: int) -> None:
        super().__init__(source, to_skip)
        self.node = node
        self._forget()

    @functools.cached_property
    def spec(self) -> Any:
        """The spec of the input's elements."""
        return self.node.input.spec

    def _forget(self) -> None:
        self.buffer: Block | None = None
        self.base: State | None = None
        self.start = 0  # of the next window, counted from the base

    def pull(self, limit: int) -> Block | None:
        spec = self.spec  # before anything is read, because it may need a look at the elements
        self.settle()
        node = self.node
        missing = node.reach - (self.buffer.size if self.buffer else 0)
        if self.base is None:
            self.base = self.source.state()
        block = pull_exactly(self.source, missing) if missing else None
        if block is not None:
            self.buffer = concatenate([self.buffer, block]) if self.buffer and self.buffer.size else block
        whole = self.buffer
        if whole is None or whole.size == 0 or (node.drop_remainder and whole.size < node.reach):
            return None
        self._advance(whole)
        return node.windows(whole.take(np.arange(0, whole.size, node.stride)), spec)

    def _advance(self, whole: Block) -> None:
        shift = self.node.shift
        if shift < whole.size:
            self.buffer = whole.take(slice(shift, None))
            self.start += shift
        else:
            self._forget()
            self.to_skip = shift - whole.size

    def skip(self, count: int) -> int:
        for skipped in range(count):
            if self.pull(1) is None:
                return skipped
        return count

    def reset(self) -> None:
        super().reset()
        self._forget()

    def state(self) -> State:
        if self.buffer is None or self.base is None:
            return super().state()
        return {"offset": self.start, "source": self.base}
