"""Any iterable whose elements are global batches."""

import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import Any

import jax

from ...errors import DatasetError
from ...runtime._own_memory import own
from ..graph._blocks import Block
from ..graph._graph import NOT_COMPARED, Cursor, State
from ..graph._structure import TensorSpec, as_leaf, component_names, flatten, map_leaves, spec_of
from ..sources._foreign import Foreign


class Passes:
    """The iterators over one iterable. The iterator that `peek` starts is used for the first pass, so nothing is read twice."""

    def __init__(self, iterable: Any, kind: str) -> None:
        self.iterable, self.kind = iterable, kind
        self._lock = threading.Lock()
        self._begun: tuple[Any, Iterator[Any]] | None = None
        self._spent = False

    def peek(self) -> Any:
        """Return the first element, or None if there is none."""
        with self._lock:
            if self._begun is None:
                iterator = self._begin()
                self._begun = (next(iterator, None), iterator)
            return self._begun[0]

    def begin(self) -> Iterator[Any]:
        """Return a new pass."""
        with self._lock:
            if self._begun is None:
                return self._begin()
            (first, rest), self._begun = self._begun, None
        return iter(()) if first is None else _joined(first, rest)

    def _begin(self) -> Iterator[Any]:
        iterator = iter(self.iterable)
        if iterator is self.iterable:
            if self._spent:
                raise DatasetError(
                    f"A {self.kind} can be read once, and it has been read. For several passes, pass a list, or a function that "
                    "makes a new one each time: `Dataset.from_generator(fn)`."
                )
            self._spent = True
        return iterator


def _joined(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


@dataclasses.dataclass(frozen=True, eq=False)
class Batches(Foreign):
    """The elements of an iterable. A position is a number of elements; to get there, they are read again."""

    passes: Passes = dataclasses.field(default_factory=lambda: Passes((), "tuple"), metadata=NOT_COMPARED)

    @classmethod
    def of(cls, iterable: Any) -> "Batches":
        """Return the batches of an iterable."""
        return cls(passes=Passes(iterable, type(iterable).__name__))

    @property
    def kind(self) -> str:
        return self.passes.kind

    @property
    def same_everywhere(self) -> bool:
        return False

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        first = self.passes.peek()
        return None if first is None else batch_spec(self.converted(first))

    def converted(self, element: Any) -> Any:
        """Convert an element to NumPy."""
        return as_batch(element)

    def begin(self) -> Iterator[Any]:
        """Return a new pass over the elements."""
        return self.passes.begin()

    def open(self, state: State | None = None) -> Cursor:
        return BatchesCursor(self, state["next"] if state else 0)


class BatchesCursor(Cursor):
    """A cursor that begins its pass when the first element is asked for."""

    def __init__(self, node: Batches, position: int) -> None:
        self.node, self.position = node, position
        self.iterator: Iterator[Any] | None = None

    def pull(self, limit: int) -> Block | None:
        iterator = self.begun()
        try:
            element = next(iterator)
        except StopIteration:
            return None
        self.position += 1
        return Block.one(self.node.converted(element))

    def begun(self) -> Iterator[Any]:
        """Return the pass, at this position."""
        if self.iterator is None:
            self.iterator = self.begin()
            for _ in range(self.position):
                next(self.iterator, None)
        return self.iterator

    def begin(self) -> Iterator[Any]:
        """Return a new pass."""
        return self.node.begin()

    def reset(self) -> None:
        self.iterator, self.position = None, 0

    def close(self) -> None:
        self.iterator = None  # not closed: it may be the user's own

    def state(self) -> State:
        return {"next": self.position}


def as_batch(element: Any) -> Any:
    """Convert the leaves of an element to NumPy, in memory that whoever made them does not write to any more."""
    leaves, structure = flatten(element)
    return jax.tree_util.tree_unflatten(
        structure, [as_leaf(own(leaf), lambda i=i: component_names(structure)[i]) for i, leaf in enumerate(leaves)]
    )


def batch_spec(element: Any) -> Any:
    """The spec of batches that differ from this one only in size."""

    def free(leaf: Any) -> TensorSpec:
        spec = spec_of(leaf)
        return TensorSpec((None, *spec.shape[1:]) if spec.shape else (), spec.dtype)

    return map_leaves(free, element)
