"""The graph: immutable nodes that describe a dataset, and cursors that mark a position in it.

A `Node` says what its elements are, and graphs can be rewritten (`rewrite`). `Node.open` returns a `Cursor`, at the beginning or
at a position that the ``state()`` of an earlier cursor described. Cursors pull *at most* what they are asked for and hold
nothing back, so a position is a few integers per node.
"""

import abc
import contextvars
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

import numpy as np

from ._blocks import Block, concatenate

INFINITE = -1
UNKNOWN = -2

# A position: ints, strings, None, and dicts and lists of them, which JSON can hold.
State = dict[str, Any]

# Metadata of a node's fields, for the fingerprints of pipelines. Fields without any are settings, which are compared as values.
NOT_COMPARED = {"compared": "no"}  # does not decide on the elements, or is in positions or the label: threads, counters, caches
FUNCTION = {"compared": "as a function"}  # the user's

# Returns the elements with these numbers (int64), in this order. There is at least one number. If an element has another structure
# than the first, those before it are returned alone.
Reader = Callable[[np.ndarray], Block]


class Cursor(abc.ABC):
    """A position in the stream of elements of one node."""

    @abc.abstractmethod
    def pull(self, limit: int) -> Block | None:
        """Return the next elements: at least one, at most ``limit``; None at the end and from then on."""

    def pull_one(self) -> tuple[Any] | None:
        """Return the next element in a tuple, or None at the end and from then on."""
        block = self.pull(1)
        return None if block is None else (next(block.elements()),)

    def pull_run(self, count: int) -> tuple[Any, int] | None:
        """Return the next ``count`` batches, all of one size, as one element with the rows of all; and that size.

        Returns None, and nothing has moved, if there may not be so many or they have to be pulled one by one.
        """
        del count

    @abc.abstractmethod
    def reset(self) -> None:
        """Go to the beginning of another pass."""

    @abc.abstractmethod
    def state(self) -> State:
        """Return the position, from which ``Node.open`` can continue."""

    def fix(self) -> None:
        """Draw now the random numbers that begin a pass, so that ``state()`` includes them."""
        return

    def skip(self, count: int) -> int:
        """Move ahead by up to ``count`` elements, if possible without making them, and return how many there were."""
        skipped = 0
        while skipped < count and (block := self.pull(count - skipped)) is not None:
            skipped += block.size
        return skipped

    def close(self) -> None:
        """Stop everything that runs in the background."""
        return

    @property
    def num_skipped(self) -> int:
        """The number of records that were left out: see `InputStats.num_skipped`."""
        return 0

    @property
    def num_passes(self) -> int:
        """The number of passes of the outermost `repeat` that have begun, at least as many as were returned from; 0 without one."""
        return 0


class Counting(Cursor):
    """A cursor that makes any element from its number. Its position is the number of the next one, below ``size``."""

    def __init__(self, position: int, size: int = sys.maxsize) -> None:
        self.position, self.size = position, size

    def skip(self, count: int) -> int:
        skipped = min(count, max(0, self.size - self.position))
        self.position += skipped
        return skipped

    def reset(self) -> None:
        self.position = 0

    def state(self) -> State:
        return {"next": self.position}


class Through(Cursor):
    """A cursor over one input that passes on what it does not change."""

    def __init__(self, source: Cursor) -> None:
        self.source = source

    def reset(self) -> None:
        self.source.reset()

    def close(self) -> None:
        self.source.close()

    @property
    def num_skipped(self) -> int:
        return self.source.num_skipped

    @property
    def num_passes(self) -> int:
        return self.source.num_passes


class After(Through):
    """A cursor that may begin some elements after its source's position. It skips them when it is first asked."""

    def __init__(self, source: Cursor, to_skip: int) -> None:
        super().__init__(source)
        self.to_skip = to_skip

    def settle(self) -> None:
        """Move the source to where this cursor begins."""
        to_skip, self.to_skip = self.to_skip, 0
        if to_skip:
            self.source.skip(to_skip)

    def reset(self) -> None:
        self.to_skip = 0
        super().reset()

    def state(self) -> State:
        return {"offset": self.to_skip, "source": self.source.state()}


class Watcher(Protocol):
    """Something that is told of every node that is opened."""

    def cursor(self, node: "Node", cursor: Cursor) -> Cursor:
        """Return the cursor to use instead of that of a node."""
        ...

    def reader(self, node: "Node", read: Reader) -> Reader:
        """Return the reader to use instead of that of a node."""
        ...


# Who watches what is opened now (`_watch.py`).
watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("replicant_watcher", default=None)


@dataclasses.dataclass(frozen=True, eq=False)
class Node(abc.ABC):
    """One transform (or source) and the nodes that it reads."""

    inputs: tuple["Node", ...] = dataclasses.field(metadata=NOT_COMPARED)

    is_made_on_its_own_thread = False  # whether those who ask for elements only wait for a thread, which tells what it does

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let every kind of node tell the watcher, if there is one, whenever it is opened."""
        super().__init_subclass__(**kwargs)
        if "open" in vars(cls):
            cls.open = _telling_of_cursors(cls.open)
        if "reader" in vars(cls):
            cls.reader = _telling_of_readers(cls.reader)

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The transform and its settings, as the user would write them."""

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """A structure of TensorSpecs, or None if it cannot be known because there is no element."""

    @property
    @abc.abstractmethod
    def cardinality(self) -> int:
        """The number of elements, INFINITE or UNKNOWN."""

    @abc.abstractmethod
    def open(self, state: State | None = None) -> Cursor:
        """Return a cursor at the beginning of a new iteration, or at a position."""

    def reader(self) -> Reader | None:
        """Return what reads any elements by their numbers from 0 to the cardinality; None if they can only be read in order."""
        return None

    @property
    def sampled(self) -> "Node":
        """The node to read instead if only the spec of an element matters: without filling buffers, without side effects."""
        return self

    def with_inputs(self, *inputs: "Node") -> Self:
        """Return the same transform over other inputs."""
        return dataclasses.replace(self, inputs=inputs)


def _telling_of_cursors(open_: Callable[..., Cursor]) -> Callable[..., Cursor]:
    @functools.wraps(open_)
    def opened(node: Node, state: State | None = None) -> Cursor:
        cursor, told = open_(node, state), watcher.get()
        return cursor if told is None else told.cursor(node, cursor)

    return opened


def _telling_of_readers(reader: Callable[..., Reader | None]) -> Callable[..., Reader | None]:
    @functools.wraps(reader)
    def given(node: Node) -> Reader | None:
        read, told = reader(node), watcher.get()
        return read if read is None or told is None else told.reader(node, read)

    return given


@dataclasses.dataclass(frozen=True, eq=False)
class OneInput(Node):
    """A node that reads one other. By default, spec and cardinality are those of its input."""

    @property
    def input(self) -> Node:
        return self.inputs[0]

    @property
    def spec(self) -> Any:
        return self.input.spec

    @property
    def cardinality(self) -> int:
        return self.input.cardinality


def rewrite(node: Node, fn: Callable[[Node], Node]) -> Node:
    """Return the graph with ``fn`` applied to every node, inputs first."""
    inputs = tuple(rewrite(child, fn) for child in node.inputs)
    if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
        node = node.with_inputs(*inputs)
    return fn(node)


def nodes(node: Node) -> Iterator[Node]:
    """Yield all nodes of a graph, inputs first."""
    for child in node.inputs:
        yield from nodes(child)
    yield node


def describe(node: Node) -> str:
    """Describe the pipeline on one line. Positions fit all pipelines with the same line."""
    if not node.inputs:
        return node.label
    before = ", ".join(describe(child) for child in node.inputs)
    return f"{before if len(node.inputs) == 1 else f'({before})'} > {node.label}"


def sample(node: Node) -> Any:
    """Return an element with the spec of the first one, or None if there is none."""
    token = watcher.set(None)  # it is not part of what is watched
    cursor = rewrite(node, lambda each: each.sampled).open()
    try:
        block = cursor.pull(1)
        return None if block is None else next(block.elements())
    finally:
        cursor.close()
        watcher.reset(token)


def pull_exactly(cursor: Cursor, count: int) -> Block | None:
    """Return the next ``count`` elements, fewer only at the end, or None if there are none."""
    blocks: list[Block] = []
    missing = count
    while missing and (block := cursor.pull(missing)) is not None:
        blocks.append(block)
        missing -= block.size
    return concatenate(blocks) if blocks else None


def known(cardinality: int) -> bool:
    """Return whether a cardinality is a number of elements."""
    return cardinality >= 0
