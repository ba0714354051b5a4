"""What several workers had left of a pass: one source of batches, which any number of workers can share."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ...replicas._topology import Topology
from ..graph._blocks import Block
from ..graph._graph import UNKNOWN, Cursor, Node, State, rewrite
from ..graph._structure import flatten
from ..transforms.memory._cache import Cache, MemoryStore
from ._rebatch import own_steps


@dataclasses.dataclass(frozen=True, eq=False)
class Rest(Node):
    """The batches that each of several workers had left, one worker's after the other's. The inputs are the workers' graphs.

    A position is that of each worker, or None for one whose batches have been read: the position of its graph, and the number of
    steps that it had made with the next batch.
    """

    replicas_per_worker: int = 1
    spec: Any = None

    @property
    def label(self) -> str:
        return f"rest of {len(self.inputs)} workers"

    @property
    def cardinality(self) -> int:
        return UNKNOWN

    def open(self, state: State | None = None) -> Cursor:
        assert state is not None, "it begins where workers were"
        return RestCursor(self, state["workers"])


class RestCursor(Cursor):
    """Opens one graph at a time, so that only its buffers are filled and only its caches are kept."""

    def __init__(self, node: Rest, workers: list[State | None]) -> None:
        self.node, self.begin = node, workers
        self.skipped_before = 0
        self.reset()

    def reset(self) -> None:
        self.workers = list(self.begin)
        self.worker = 0
        self.cursor: Cursor | None = None
        self.step = 0  # of the next batch

    def _current(self) -> Cursor | None:
        """The graph that is read now; None at the end."""
        while self.cursor is None and self.worker < len(self.workers):
            state = self.workers[self.worker]
            if state is None:
                self.worker += 1
            else:
                self.cursor = rewrite(self.node.inputs[self.worker], _with_new_memory).open(state["source"])
                self.step = state["step"]
        return self.cursor

    def pull(self, limit: int) -> Block | None:
        while (cursor := self._current()) is not None:
            block = cursor.pull(1)
            if block is not None:
                step, self.step = self.step, 0
                return self._without(step, block) if step else block
            self.skipped_before += cursor.num_skipped
            cursor.close()
            self.workers[self.worker] = self.cursor = None
        return None

    def _without(self, step: int, block: Block) -> Block:
        """A batch without the rows of the steps before this one."""
        batch = next(block.elements())
        leaves = flatten(batch)[0]
        topology = Topology(len(self.workers), self.worker, self.node.replicas_per_worker)
        first = own_steps(len(leaves[0]) if leaves else 0, topology)[step][0]
        return Block.one(jax.tree_util.tree_map(lambda leaf: np.asarray(leaf)[first:], batch))

    def state(self) -> State:
        workers = list(self.workers)
        if self.cursor is not None:
            workers[self.worker] = {"step": self.step, "source": self.cursor.state()}
        return {"workers": workers}

    def fix(self) -> None:
        if (cursor := self._current()) is not None:
            cursor.fix()

    @property
    def num_skipped(self) -> int:
        return self.skipped_before + (self.cursor.num_skipped if self.cursor else 0)

    def close(self) -> None:
        if self.cursor is not None:
            self.cursor.close()


def _with_new_memory(node: Node) -> Node:
    """The node; a cache in memory has a memory of its own, which is freed with the graph."""
    is_in_memory = isinstance(node, Cache) and isinstance(node.store, MemoryStore)
    return dataclasses.replace(node, store=MemoryStore()) if is_in_memory else node
