"""Transforms that choose elements by their number: repeat, take, skip, shard, enumerate."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ...graph._blocks import Block, Dense
from ...graph._graph import INFINITE, Cursor, OneInput, Reader, State, Through, known
from ...graph._structure import TensorSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Repeat(OneInput):
    """``count`` passes over the input, endlessly many if it is INFINITE. A new iteration begins with pass ``first``."""

    count: int = INFINITE
    first: int = 0

    @property
    def label(self) -> str:
        return "repeat()" if self.count == INFINITE else f"repeat({self.count})"

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if self.count == 0 or size == 0:
            return 0
        if INFINITE in (size, self.count):
            return INFINITE
        return size * self.count if known(size) else size

    def open(self, state: State | None = None) -> Cursor:
        state = state or {"pass": self.first, "began": False, "source": None}
        return RepeatCursor(self.input.open(state["source"]), self.count, state["pass"], state["began"])


class RepeatCursor(Through):
    """Starts another pass when one ends."""

    def __init__(self, source: Cursor, count: int, pass_: int, began: bool) -> None:
        super().__init__(source)
        self.count, self.pass_, self.began = count, pass_, began

    def pull(self, limit: int) -> Block | None:
        while self.count == INFINITE or self.pass_ < self.count:
            block = self.source.pull(limit)
            if block is not None:
                self.began = True
                return block
            if self.count == INFINITE and not self.began:  # an empty pass would be followed by empty passes forever
                return None
            self.pass_ += 1
            if self.pass_ != self.count:
                self.began = False
                self.source.reset()
        return None

    def pull_run(self, count: int) -> tuple[Any, int] | None:
        run = self.source.pull_run(count) if self.count == INFINITE or self.pass_ < self.count else None
        self.began = self.began or run is not None
        return run

    def reset(self) -> None:
        self.pass_, self.began = 0, False
        self.source.reset()

    def state(self) -> State:
        return {"pass": self.pass_, "began": self.began, "source": self.source.state()}

    @property
    def num_passes(self) -> int:
        return self.pass_ + 1 if self.count == INFINITE else min(self.pass_ + 1, self.count)


@dataclasses.dataclass(frozen=True, eq=False)
class Take(OneInput):
    """The first ``count`` elements."""

    count: int = 0

    @property
    def label(self) -> str:
        return f"take({self.count})"

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if self.count == 0 or size == INFINITE:
            return self.count
        return min(size, self.count) if known(size) else size

    def reader(self) -> Reader | None:
        return self.input.reader()

    def open(self, state: State | None = None) -> Cursor:
        return TakeCursor(self.input.open(state and state["source"]), self.count, state["taken"] if state else 0)


class TakeCursor(Through):
    """Counts the elements that it passed on."""

    def __init__(self, source: Cursor, count: int, taken: int) -> None:
        super().__init__(source)
        self.count, self.taken = count, taken

    def pull(self, limit: int) -> Block | None:
        limit = min(limit, self.count - self.taken)
        block = self.source.pull(limit) if limit else None
        self.taken += block.size if block else 0
        return block

    def skip(self, count: int) -> int:
        skipped = self.source.skip(min(count, self.count - self.taken))
        self.taken += skipped
        return skipped

    def reset(self) -> None:
        self.taken = 0
        self.source.reset()

    def state(self) -> State:
        return {"taken": self.taken, "source": self.source.state()}


@dataclasses.dataclass(frozen=True, eq=False)
class Skip(OneInput):
    """All but the first ``count`` elements."""

    count: int = 0

    @property
    def label(self) -> str:
        return f"skip({self.count})"

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        return max(0, size - self.count) if known(size) else size

    def reader(self) -> Reader | None:
        read = self.input.reader()
        return None if read is None else lambda numbers: read(numbers + self.count)

    def open(self, state: State | None = None) -> Cursor:
        return SkipCursor(self.input.open(state and state["source"]), self.count, bool(state and state["skipped"]))


class SkipCursor(Through):
    """Skips when it is first asked, not when it is opened, so that an iterator that is never used reads nothing."""

    def __init__(self, source: Cursor, count: int, skipped: bool) -> None:
        super().__init__(source)
        self.count, self.skipped = count, skipped

    def pull(self, limit: int) -> Block | None:
        if not self.skipped:
            self.source.skip(self.count)
            self.skipped = True
        return self.source.pull(limit)

    def reset(self) -> None:
        self.skipped = False
        self.source.reset()

    def state(self) -> State:
        return {"skipped": self.skipped, "source": self.source.state()}


@dataclasses.dataclass(frozen=True, eq=False)
class Shard(OneInput):
    """Every ``num_shards``-th element, starting with number ``index``."""

    num_shards: int = 1
    index: int = 0

    @property
    def label(self) -> str:
        return f"shard({self.num_shards}, {self.index})"

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        return len(range(self.index, size, self.num_shards)) if known(size) else size

    def reader(self) -> Reader | None:
        read = self.input.reader()
        return None if read is None else lambda numbers: read(numbers * self.num_shards + self.index)

    def open(self, state: State | None = None) -> Cursor:
        ahead = state["ahead"] if state else self.index
        return ShardCursor(self.input.open(state and state["source"]), self, ahead)


class ShardCursor(Through):
    """Knows how many elements come before the next one of this shard."""

    def __init__(self, source: Cursor, node: Shard, ahead: int) -> None:
        super().__init__(source)
        self.node, self.ahead = node, ahead

    def pull(self, limit: int) -> Block | None:
        num_shards = self.node.num_shards
        self.ahead -= self.source.skip(self.ahead)
        block = None if self.ahead else self.source.pull((limit - 1) * num_shards + 1)
        if block is None:
            return None
        chosen = np.arange(0, block.size, num_shards)
        self.ahead = int(chosen[-1]) + num_shards - block.size
        return block.take(chosen)

    def reset(self) -> None:
        self.ahead = self.node.index
        self.source.reset()

    def state(self) -> State:
        return {"ahead": self.ahead, "source": self.source.state()}


@dataclasses.dataclass(frozen=True, eq=False)
class Enumerate(OneInput):
    """Pairs ``(number, element)``."""

    start: int = 0

    @property
    def label(self) -> str:
        return f"enumerate({self.start})"

    @property
    def spec(self) -> Any:
        spec = self.input.spec
        return None if spec is None else (TensorSpec((), np.int64), spec)

    def reader(self) -> Reader | None:
        read = self.input.reader()
        return None if read is None else lambda numbers: _numbered(numbers + self.start, read(numbers))

    def open(self, state: State | None = None) -> Cursor:
        number = state["number"] if state else self.start
        return EnumerateCursor(self.input.open(state and state["source"]), self.start, number)


class EnumerateCursor(Through):
    """Counts the elements that it passed on."""

    def __init__(self, source: Cursor, start: int, number: int) -> None:
        super().__init__(source)
        self.start, self.number = start, number

    def pull(self, limit: int) -> Block | None:
        block = self.source.pull(limit)
        if block is None:
            return None
        numbers = np.arange(self.number, self.number + block.size)
        self.number += block.size
        return _paired(numbers, block)

    def skip(self, count: int) -> int:
        skipped = self.source.skip(count)
        self.number += skipped
        return skipped

    def reset(self) -> None:
        self.number = self.start
        self.source.reset()

    def state(self) -> State:
        return {"number": self.number, "source": self.source.state()}


def _numbered(numbers: np.ndarray, block: Block) -> Block:
    return _paired(numbers[: block.size], block)


def _paired(numbers: np.ndarray, block: Block) -> Block:
    """Pairs of a number and an element."""
    structure = jax.tree_util.treedef_tuple((jax.tree_util.tree_structure(0), block.structure))
    return Block(structure, (Dense(numbers), *block.columns), block.size)
