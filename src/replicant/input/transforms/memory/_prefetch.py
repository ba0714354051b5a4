"""Reads ahead on a thread, inside a pipeline."""

import dataclasses
from typing import Any

from ...graph._background import END, Background
from ...graph._blocks import Block
from ...graph._graph import Cursor, Node, OneInput, State

_DEFAULT_AHEAD = 2
_BLOCKS_IN_BUFFER = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Prefetch(OneInput):
    """Keeps up to ``buffer_size`` elements ready; AUTOTUNE (-1) keeps 2."""

    is_made_on_its_own_thread = True

    buffer_size: int = _DEFAULT_AHEAD

    @property
    def label(self) -> str:
        return f"prefetch({self.buffer_size})"

    @property
    def sampled(self) -> Node:
        return self.input

    def open(self, state: State | None = None) -> Cursor:
        cursor = PrefetchCursor(self.input, self.buffer_size, self.input.open(state and state["source"]))
        if state and state["offset"]:
            cursor.go_to(state["offset"])
        return cursor


class PrefetchCursor(Cursor):
    """Only the thread uses the source. Each block comes with the positions before and after it."""

    def __init__(self, node: Node, buffer_size: int, source: Cursor) -> None:
        self.node = node
        size = _DEFAULT_AHEAD if buffer_size < 1 else buffer_size
        self.block_size = max(1, size // _BLOCKS_IN_BUFFER)
        self.ahead = max(1, size // self.block_size)
        self._start(source)

    def _start(self, source: Cursor) -> None:
        self.source = source
        self.before = self.after = source.state()
        self.passes = source.num_passes
        self.block: Block | None = None
        self.offset = 0
        block_size = self.block_size

        def produce() -> Any:
            block = source.pull(block_size)
            return END if block is None else (block, source.state(), source.num_passes)

        self.background = Background(produce, source.close, self.ahead, "replicant-prefetch")

    def _next_block(self) -> bool:
        item = self.background.next()
        if item is END:
            return False
        self.before = self.after
        self.block, self.after, self.passes = item
        self.offset = 0
        return True

    def go_to(self, offset: int) -> None:
        """Go to this element of the next block."""
        if self._next_block():
            self.offset = offset

    def pull(self, limit: int) -> Block | None:
        if (self.block is None or self.offset == self.block.size) and not self._next_block():
            return None
        assert self.block is not None
        stop = min(self.offset + limit, self.block.size)
        block = self.block.take(slice(self.offset, stop))
        self.offset = stop
        return block

    def reset(self) -> None:
        self.background.close(seconds=None)
        self.source.reset()
        self._start(self.source)

    def state(self) -> State:
        if self.block is None or self.offset == self.block.size:
            return {"offset": 0, "source": self.after}
        return {"offset": self.offset, "source": self.before}

    @property
    def num_skipped(self) -> int:
        return self.source.num_skipped

    @property
    def num_passes(self) -> int:
        return self.passes

    def close(self) -> None:
        self.background.close()
        self.source.close()
