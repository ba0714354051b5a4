"""A shuffle of all elements without a buffer: element i is the one whose number a pseudorandom permutation gives for i.

So the position is one number, whatever was read, and elements are read by their numbers. A `map` right before it is applied
after it, which gives the same elements and leaves the threads to it.
"""

import dataclasses

import numpy as np

from ...errors import DatasetError
from ..graph._blocks import Block
from ..graph._graph import Cursor, Node, OneInput, State
from ._map import Map
from ._permutation import Permutation
from ._shuffle import Drawing

_CHUNK = 4096  # numbers that are permuted at once


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalShuffle(OneInput, Drawing):
    """All elements of an input that has a reader, in another order."""

    @property
    def label(self) -> str:
        settings = [] if self.seed is None else [f"seed={self.seed}"]
        return f"global_shuffle({', '.join([*settings, *([] if self.reshuffle else ['reshuffle_each_iteration=False'])])})"

    @property
    def sampled(self) -> Node:
        return self.input

    def open(self, state: State | None = None) -> Cursor:
        return GlobalShuffleCursor(self, self.draws(state), state["next"] if state else 0)


class GlobalShuffleCursor(Cursor):
    """Counts. The order of a pass is computed in aligned chunks, when they are reached."""

    def __init__(self, node: GlobalShuffle, order: tuple[int, int, int], position: int) -> None:
        self.node, self.position = node, position
        self.entropy, self.iteration, self.pass_ = order
        self.size = node.cardinality
        read = node.input.reader()
        assert read is not None, "checked when the dataset was made"
        self.read = read
        self._begin()

    def _begin(self) -> None:
        self.permutation = Permutation(self.size, (self.entropy, self.iteration, self.pass_))
        self.chunk = -1
        self.numbers = np.empty(0, np.int64)

    def pull(self, limit: int) -> Block | None:
        if self.position >= self.size:
            return None
        chunk, start = divmod(self.position, _CHUNK)
        if chunk != self.chunk:
            first = chunk * _CHUNK
            self.numbers = self.permutation.at(np.arange(first, min(first + _CHUNK, self.size)))
            self.chunk = chunk
        numbers = self.numbers[start : start + limit]
        self.position += len(numbers)  # even if the function of a `map` fails for one of them
        return self.read(numbers)

    def skip(self, count: int) -> int:
        skipped = min(count, self.size - self.position)
        self.position += skipped
        return skipped

    def reset(self) -> None:
        self.position = 0
        self.pass_ += self.node.reshuffle
        self._begin()

    def state(self) -> State:
        return {"entropy": self.entropy, "iteration": self.iteration, "pass": self.pass_, "next": self.position}


def globally_shuffled(node: Node, seed: int | None, entropy: int, reshuffle: bool) -> Node:
    """Return the elements of a node in another order.

    Raises:
        DatasetError: If its elements cannot be read by their numbers.
    """
    if isinstance(node, Map):
        return node.with_inputs(globally_shuffled(node.input, seed, entropy, reshuffle))
    if node.reader() is None:
        raise DatasetError(_refusal(_obstacle(node)))
    return GlobalShuffle(inputs=(node,), seed=seed, reshuffle=reshuffle, entropy=entropy)


def _obstacle(node: Node) -> Node:
    """The first node whose elements have no numbers, although those of its inputs have."""
    return next((_obstacle(child) for child in node.inputs if child.reader() is None), node)


def _refusal(node: Node) -> str:
    if node.inputs:
        remedy = "Call `global_shuffle` before it, or use `shuffle(buffer_size)`."
    else:
        remedy = (
            "Use `shuffle(buffer_size)`. Or read from something that takes an index: "
            "`Dataset.range(len(source)).global_shuffle().map(lambda i: source[i])`, or an array, which "
            '`np.load(path, mmap_mode="r")` leaves on the disk.'
        )
    return f"global_shuffle reads elements by their numbers, but `{node.label}` can only give them in order. {remedy}"
