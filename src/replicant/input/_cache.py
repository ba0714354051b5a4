"""Keeping what one pass read, in memory, for the passes after it."""

import dataclasses
import threading

import numpy as np

from ._blocks import Block, Boxed, Column, Dense, concatenate
from ._graph import Cursor, Node, OneInput, State, Through, pull_exactly


class Store:
    """What the first complete pass read, and the position where that pass began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begin: State | None = None
        self.kept: Block | None = None

    def publish(self, begin: State, kept: Block) -> None:
        """Keep this pass, unless another iterator was first."""
        with self.lock:
            if self.begin is None:
                self.begin, self.kept = begin, kept


@dataclasses.dataclass(frozen=True, eq=False)
class Cache(OneInput):
    """The first complete pass is kept and replayed by all that begin after it, whoever iterates."""

    store: Store = dataclasses.field(default_factory=Store)

    @property
    def label(self) -> str:
        return "cache()"

    @property
    def sampled(self) -> Node:
        return self.input

    def open(self, state: State | None = None) -> Cursor:
        cursor = CacheCursor(self.input.open(state and state["begin"]), self.store)
        if state:
            cursor.go_to(state["begin"], state["position"])
        return cursor


class CacheCursor(Through):
    """Fills a list of its own, or replays; the position is that of the pass that filled, and a number of elements."""

    def __init__(self, source: Cursor, store: Store) -> None:
        super().__init__(source)
        self.store = store
        self.position = 0
        self.begin = source.state()
        self.filled: list[Block] = []
        self.kept: Block | None = None
        self._replay_if_kept()

    def _replay_if_kept(self) -> None:
        if self.store.begin is not None:
            self.begin, self.kept = self.store.begin, self.store.kept

    def go_to(self, begin: State, position: int) -> None:
        """Stand after ``position`` elements of the pass that began at ``begin``."""
        if self.kept is None or self.begin != begin:
            self.begin, self.kept = begin, None
            pull_exactly(self, position)
        self.position = position

    def pull(self, limit: int) -> Block | None:
        if self.kept is not None:
            stop = min(self.position + limit, self.kept.size)
            block = self.kept.take(slice(self.position, stop))
            self.position = stop
            return block if block.size else None
        block = self.source.pull(limit)
        if block is None:
            self._complete()
            return None
        block = Block(block.structure, [_protected(column) for column in block.columns], block.size)
        self.filled.append(block)
        self.position += block.size
        return block

    def _complete(self) -> None:
        if self.filled:
            self.kept = concatenate(self.filled)
            self.store.publish(self.begin, self.kept)
            self.filled = []

    def reset(self) -> None:
        self.position = 0
        if self.kept is None:
            self.filled = []
            self.source.reset()
            self.begin = self.source.state()
            self._replay_if_kept()

    def state(self) -> State:
        return {"begin": self.begin, "position": self.position}


def _protected(column: Column) -> Column:
    """Elements are handed out again in every pass: nobody may write to them."""
    if isinstance(column, Dense):
        return Dense(_read_only(column.refs))
    if isinstance(column, Boxed):
        return Boxed.of([_read_only(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in column.refs])
    return column  # gathers anew each time


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
