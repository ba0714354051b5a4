"""Transforms of several datasets: zip and concatenate."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ....errors import DatasetError
from ...graph._blocks import Block, concatenate
from ...graph._graph import INFINITE, UNKNOWN, Cursor, Node, Reader, State, known, pull_exactly
from ...graph._structure import TensorSpec, flatten


@dataclasses.dataclass(frozen=True, eq=False)
class Zip(Node):
    """The elements of all inputs side by side, nested as in ``structure``. Ends with the shortest input."""

    structure: Any = None

    @property
    def label(self) -> str:
        return "zip"

    @property
    def spec(self) -> Any:
        specs = [child.spec for child in self.inputs]
        return None if None in specs else jax.tree_util.tree_unflatten(self.structure, specs)

    @property
    def cardinality(self) -> int:
        sizes = [child.cardinality for child in self.inputs if child.cardinality != INFINITE]
        if not sizes:
            return INFINITE
        return UNKNOWN if UNKNOWN in sizes else min(sizes)

    def reader(self) -> Reader | None:
        reads = [read for child in self.inputs if (read := child.reader()) is not None]
        if len(reads) < len(self.inputs):
            return None
        return lambda numbers: _side_by_side(self.structure, _of_one_size([read(numbers) for read in reads]))

    def open(self, state: State | None = None) -> Cursor:
        states = state["sources"] if state else [None] * len(self.inputs)
        return ZipCursor([child.open(each) for child, each in zip(self.inputs, states, strict=True)], self.structure)


class Several(Cursor):
    """A cursor over several inputs."""

    def __init__(self, sources: list[Cursor]) -> None:
        self.sources = sources

    def reset(self) -> None:
        for source in self.sources:
            source.reset()

    def close(self) -> None:
        for source in self.sources:
            source.close()

    @property
    def num_skipped(self) -> int:
        return sum(source.num_skipped for source in self.sources)

    def state(self) -> State:
        return {"sources": [source.state() for source in self.sources]}


class ZipCursor(Several):
    """Pulls the same number of elements from every input."""

    def __init__(self, sources: list[Cursor], structure: Any) -> None:
        super().__init__(sources)
        self.nesting = structure

    def pull(self, limit: int) -> Block | None:
        blocks: list[Block] = []
        for number, source in enumerate(self.sources):
            try:
                block = pull_exactly(source, limit)
            except Exception:
                for other in self.sources[number + 1 :]:  # so that whoever asks again gets elements that belong together
                    other.skip(limit)
                raise
            if block is None:
                return None
            limit = block.size
            blocks.append(block)
        return _side_by_side(self.nesting, _of_one_size(blocks))


def _of_one_size(blocks: list[Block]) -> list[Block]:
    """The first elements of blocks, as many as the smallest has."""
    size = min(block.size for block in blocks)
    return [block.take(slice(size)) if block.size > size else block for block in blocks]


def _side_by_side(nesting: Any, blocks: list[Block]) -> Block:
    """The elements of blocks of one size, nested as in a structure."""
    # Nest the structures by means of placeholders, so that each input's leaves stay together in the user's order.
    nested = jax.tree_util.tree_unflatten(
        nesting, [jax.tree_util.tree_unflatten(b.structure, [0] * b.structure.num_leaves) for b in blocks]
    )
    structure = jax.tree_util.tree_structure(nested)
    return Block(structure, [column for block in blocks for column in block.columns], blocks[0].size)


@dataclasses.dataclass(frozen=True, eq=False)
class Concatenate(Node):
    """All elements of the first input, then all of the second.

    Raises:
        DatasetError: By `spec`, if the inputs differ in structure or dtype.
    """

    @property
    def label(self) -> str:
        return "concatenate"

    @property
    def spec(self) -> Any:
        first, second = (child.spec for child in self.inputs)
        if first is None or second is None:
            return second if first is None else first
        (ones, structure), (twos, other) = flatten(first), flatten(second)
        if structure != other or any(a.dtype != b.dtype for a, b in zip(ones, twos, strict=True)):
            raise DatasetError(
                f"concatenate: both datasets need the same structure and dtypes. The first has {first}, the second {second}."
            )
        return jax.tree_util.tree_unflatten(structure, [_merged(a, b) for a, b in zip(ones, twos, strict=True)])

    @property
    def cardinality(self) -> int:
        sizes = [child.cardinality for child in self.inputs]
        if INFINITE in sizes:
            return INFINITE
        return sum(sizes) if all(map(known, sizes)) else UNKNOWN

    def reader(self) -> Reader | None:
        (first, second), size = (child.reader() for child in self.inputs), self.inputs[0].cardinality
        return None if first is None or second is None else lambda numbers: _of_both(first, second, size, numbers)

    def open(self, state: State | None = None) -> Cursor:
        states = state["sources"] if state else [None] * len(self.inputs)
        return ConcatenateCursor([child.open(each) for child, each in zip(self.inputs, states, strict=True)])


class ConcatenateCursor(Several):
    """Asks the inputs one after the other. Those that have ended say so again."""

    def pull(self, limit: int) -> Block | None:
        for source in self.sources:
            block = source.pull(limit)
            if block is not None:
                return block
        return None


def _of_both(first: Reader, second: Reader, size: int, numbers: np.ndarray) -> Block:
    """Elements of two datasets, of which the first has ``size`` elements."""
    in_first = numbers < size
    of_first, of_second = np.flatnonzero(in_first), np.flatnonzero(~in_first)
    parts = [(first, of_first, 0), (second, of_second, size)]
    blocks = [read(numbers[places] - before) for read, places, before in parts if len(places)]
    if sum(block.size for block in blocks) < len(numbers):  # of different structures
        return _of_both(first, second, size, numbers[:1])
    return concatenate(blocks).take(np.argsort(np.concatenate([of_first, of_second])))


def _merged(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    """The spec that fits both: sizes that differ become None. Ranks are compared when elements are stacked."""
    if len(a.shape) != len(b.shape):
        return a
    return TensorSpec(tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)), a.dtype)
