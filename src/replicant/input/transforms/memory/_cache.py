"""Keeps what one pass read for later passes: in memory here, in a file in `_cache_file`."""

import abc
import dataclasses
import threading

import numpy as np

from ....errors import DatasetError
from ....storage._counts import counting, current_counts
from ...graph._blocks import Block, Boxed, Column, Dense, concatenate
from ...graph._graph import NOT_COMPARED, Cursor, Node, OneInput, State, Through, pull_exactly


class Kept(abc.ABC):
    """All elements of one pass."""

    begin: State  # the position where that pass began

    @abc.abstractmethod
    def read(self, start: int, limit: int) -> Block | None:
        """Return elements from number ``start`` on: at least one, at most ``limit``; None at the end."""


class Filling(abc.ABC):
    """The elements of a pass that is not yet complete."""

    @abc.abstractmethod
    def add(self, block: Block) -> None:
        """Add the next elements."""

    @abc.abstractmethod
    def complete(self, begin: State) -> Kept | None:
        """Note that the pass is complete. Returns a pass that began where this one did, or None if it had no elements."""

    def discard(self) -> None:
        """Note that the pass will not be completed."""
        return


class Store(abc.ABC):
    """The place where the first complete pass is kept."""

    @abc.abstractmethod
    def find(self) -> Kept | None:
        """Return that pass, if there is one."""

    @abc.abstractmethod
    def fill(self) -> Filling:
        """Begin a new pass, which is kept if it is the first to be completed."""


class MemoryStore(Store):
    """Keeps the blocks themselves."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: Kept | None = None

    def find(self) -> Kept | None:
        return self.kept

    def fill(self) -> Filling:
        return _MemoryFilling(self)


class _MemoryFilling(Filling):
    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.blocks: list[Block] = []

    def add(self, block: Block) -> None:
        self.blocks.append(block)

    def complete(self, begin: State) -> Kept | None:
        if not self.blocks:
            return None
        kept = _KeptBlock(begin, concatenate(self.blocks))
        with self.store.lock:
            if self.store.kept is None or self.store.kept.begin != begin:  # otherwise another iterator was first
                self.store.kept = kept
        return kept


class _KeptBlock(Kept):
    def __init__(self, begin: State, block: Block) -> None:
        self.begin, self.block = begin, block

    def read(self, start: int, limit: int) -> Block | None:
        block = self.block.take(slice(start, start + limit))
        return block if block.size else None


@dataclasses.dataclass(frozen=True, eq=False)
class Cache(OneInput):
    """Keeps the first complete pass, and replays it in all later passes of all iterators.

    ``strict`` limits this to passes that would have read the same order.
    """

    store: Store = dataclasses.field(default_factory=MemoryStore, metadata=NOT_COMPARED)
    name: str = dataclasses.field(default="", metadata=NOT_COMPARED)
    strict: bool = dataclasses.field(default=False, metadata=NOT_COMPARED)
    method: str = dataclasses.field(default="cache", metadata=NOT_COMPARED)  # or snapshot

    @property
    def label(self) -> str:
        return f"{self.method}({self.name})"

    @property
    def sampled(self) -> Node:
        return self.input

    def open(self, state: State | None = None) -> Cursor:
        try:
            source = self.input.open(state and state["begin"])
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            if state is None:
                raise
            raise DatasetError(
                f"{self.label}: the position is of a pass that began at {state['begin']!r:.200}, which is not a place in its "
                f"input ({type(error).__name__}: {error}). If the file of the cache is not one that Replicant wrote, delete it."
            ) from error
        cursor = CacheCursor(source, self.store, self.strict)
        if state:
            cursor.go_to(state["begin"], state["position"])
        return cursor


class CacheCursor(Through):
    """Fills the cache, or replays it. The position is where the pass that filled it began, and a number of elements."""

    def __init__(self, source: Cursor, store: Store, strict: bool) -> None:
        super().__init__(source)
        self.store, self.strict = store, strict
        self.counts = current_counts()
        self.filling: Filling | None = None
        self.kept, self.begin = self._found()
        self.position = 0

    def _found(self) -> tuple[Kept | None, State]:
        """What is kept already, if it can be replayed, and where the pass began that has filled it, or will."""
        with counting(self.counts):
            kept = self.store.find()
        if kept is None or (self.strict and kept.begin != self.source.state()):
            return None, self.source.state()
        return kept, kept.begin

    def go_to(self, begin: State, position: int) -> None:
        """Go to the place after ``position`` elements of the pass that began at ``begin``."""
        if self.kept is None or self.begin != begin:
            self.begin, self.kept = begin, None
            pull_exactly(self, position)
        self.position = position

    def pull(self, limit: int) -> Block | None:
        if self.kept is not None:
            block = self.kept.read(self.position, limit)
            self.position += block.size if block else 0
            return block
        if self.filling is None:
            self.filling = self.store.fill()  # before any function is called, which may change what it captures
        block = self.source.pull(limit)
        if block is None:
            with counting(self.counts):
                self.kept = self.filling.complete(self.begin)
            self.filling = None
            return None
        block = Block(block.structure, [_protected(column) for column in block.columns], block.size)
        self.filling.add(block)
        self.position += block.size
        return block

    def _discard(self) -> None:
        if self.filling is not None:
            self.filling.discard()
            self.filling = None

    def reset(self) -> None:
        self._discard()
        if self.kept is None:
            self.source.reset()
            self.kept, self.begin = self._found()
        self.position = 0

    def close(self) -> None:
        self._discard()
        self.source.close()

    def state(self) -> State:
        return {"begin": self.begin, "position": self.position}


def _protected(column: Column) -> Column:
    """The column, made read-only, because its elements are returned again in every pass."""
    if isinstance(column, Dense):
        return Dense(_read_only(column.refs))
    if isinstance(column, Boxed):
        return Boxed.of([_read_only(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in column.refs])
    return column  # gathers its rows again each time


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
