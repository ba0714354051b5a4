"""Transforms that call a user's function: map and filter."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ....errors import ArgumentTypeError, ElementError
from ....runtime._own_memory import own_if_held
from ...graph._blocks import Block
from ...graph._graph import UNKNOWN, After, Cursor, OneInput, Reader, State, Through, sample
from ...graph._structure import TensorSpec, as_leaf, component_names, flatten, show_structure, spec_of
from ._parallel import ParallelMapCursor


@dataclasses.dataclass(frozen=True, eq=False)
class Map(OneInput):
    """Applies ``fn`` to every element on `num_threads` threads: 0 on the consumer's, AUTOTUNE (-1) on one per core."""

    fn: Callable[..., Any]
    num_threads: int = 0

    @property
    def label(self) -> str:
        return f"map({name_of(self.fn)})"  # positions do not depend on threads

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        element = sample(self.input)
        if element is None:
            return None
        leaves, structure = converted(call(self.fn, element), element)
        free = free_sizes(element, self.input.spec)
        specs = [spec_of(leaf) for leaf in leaves]
        specs = [TensorSpec((None, *s.shape[1:]), s.dtype) if s.shape and s.shape[0] in free else s for s in specs]
        return jax.tree_util.tree_unflatten(structure, specs)

    def reader(self) -> Reader | None:
        read = None if self.num_threads else self.input.reader()
        return None if read is None else lambda numbers: _joined(self.fn, [self._made(each) for each in read(numbers).elements()])

    def open(self, state: State | None = None) -> Cursor:
        source = self.input.open(state and state["source"])
        to_skip = state["offset"] if state else 0
        if not self.num_threads:
            return MapCursor(source, to_skip, self.fn)
        num_threads = self.num_threads if self.num_threads > 0 else os.cpu_count() or 1
        return ParallelMapCursor(source, to_skip, self._made, lambda made: _joined(self.fn, made), num_threads)

    def _made(self, element: Any) -> tuple[list[Any], Any]:
        return converted(call(self.fn, element), element)


class MapCursor(After):
    """Calls the function once per element that is pulled, and never for those that are skipped."""

    def __init__(self, source: Cursor, to_skip: int, fn: Callable[..., Any]) -> None:
        super().__init__(source, to_skip)
        self.fn = fn

    def pull(self, limit: int) -> Block | None:
        self.settle()
        block = self.source.pull(limit)
        if block is None:
            return None
        return _joined(self.fn, [converted(call(self.fn, element), element) for element in block.elements()])

    def skip(self, count: int) -> int:
        self.settle()
        return self.source.skip(count)


def _joined(fn: Callable[..., Any], made: list[tuple[list[Any], Any]]) -> Block:
    """The elements that a function returned, as one block."""
    structure = made[0][1]
    for _, its in made:
        if its != structure:
            raise ElementError(
                f"map({name_of(fn)}) must return the same structure for all elements. "
                f"It returned {show_structure(structure)}, then {show_structure(its)}."
            )
    return Block.of_elements(structure, [leaves for leaves, _ in made])


@dataclasses.dataclass(frozen=True, eq=False)
class Filter(OneInput):
    """The elements for which ``predicate`` is true."""

    predicate: Callable[..., Any]

    @property
    def label(self) -> str:
        return f"filter({name_of(self.predicate)})"

    @property
    def cardinality(self) -> int:
        return 0 if self.input.cardinality == 0 else UNKNOWN

    def open(self, state: State | None = None) -> Cursor:
        return FilterCursor(self.input.open(state and state["source"]), self.predicate)


class FilterCursor(Through):
    """Asks the predicate for each element."""

    def __init__(self, source: Cursor, predicate: Callable[..., Any]) -> None:
        super().__init__(source)
        self.predicate = predicate

    def pull(self, limit: int) -> Block | None:
        while (block := self.source.pull(limit)) is not None:
            answers = [truth(call(self.predicate, element), self.predicate, "filter") for element in block.elements()]
            kept = np.flatnonzero(answers)
            if len(kept):
                return block.take(kept)
        return None

    def state(self) -> State:
        return {"source": self.source.state()}


def call(fn: Callable[..., Any], element: Any) -> Any:
    """Call the function on an element. Tuples are unpacked; everything else, even a named tuple, is one argument."""
    try:
        return fn(*element) if type(element) is tuple else fn(element)
    except StopIteration as error:  # it would end the loop over the dataset, as if there were no more elements
        raise RuntimeError(f"the function {name_of(fn)} raised StopIteration") from error


def converted(result: Any, element: Any = ()) -> tuple[list[Any], Any]:
    """Return leaves and structure of what a function returned for an element.

    The function may write to its arrays again when it is called again.
    """
    leaves, structure = flatten(result)
    del result  # so that nothing but the list holds arrays that the function has let go
    leaves = own_if_held(leaves, element if type(element) is tuple else (element,))
    return [as_leaf(leaf, lambda i=i: component_names(structure)[i]) for i, leaf in enumerate(leaves)], structure


def free_sizes(element: Any, spec: Any) -> set[int]:
    """Return the leading sizes of the sample that are a batch size, not part of every element's shape."""
    pairs = zip(flatten(element)[0], flatten(spec)[0], strict=True)
    return {leaf.shape[0] for leaf, its in pairs if its.shape and its.shape[0] is None}


def truth(value: Any, predicate: Callable[..., Any], method: str) -> bool:
    """Return what a predicate answered.

    Raises:
        ArgumentTypeError: If it is not one bool.
    """
    if np.ndim(value) or np.asarray(value).dtype != np.bool_:
        raise ArgumentTypeError(
            f"{method}: {name_of(predicate)} must return one bool per element. Received: {value!r}. "
            "Reduce it with `.all()` or `.any()`."
        )
    return bool(value)


def name_of(fn: Callable[..., Any]) -> str:
    """Return a function's name, as its author knows it."""
    return getattr(fn, "__qualname__", type(fn).__qualname__)
