"""Sources in memory: rows of arrays, and ranges of integers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentError, DatasetError, ElementError
from ...runtime._usable_arrays import NUMBERS
from ..graph._blocks import Block, Column, Dense, Gathered
from ..graph._graph import NOT_COMPARED, Counting, Cursor, Node, Reader, State
from ..graph._structure import TensorSpec, as_leaf, component_names, flatten, spec_of

_INT64 = np.dtype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Counted(Node):
    """A source whose elements are numbered, so that a run of them is cheap to describe."""

    inputs: tuple[Node, ...] = dataclasses.field(default=(), metadata=NOT_COMPARED)
    size: int = 0

    @property
    def cardinality(self) -> int:
        return self.size

    def open(self, state: State | None = None) -> Cursor:
        return CountedCursor(self, state["next"] if state else 0)

    def columns(self, start: int, stop: int) -> list[Column]:
        """Return one column per leaf, for elements ``start`` to ``stop``."""
        raise NotImplementedError

    @property
    def structure(self) -> Any:
        """The structure of an element."""
        return flatten(self.spec)[1]


class CountedCursor(Counting):
    """Counts up."""

    def __init__(self, node: Counted, position: int) -> None:
        super().__init__(position, node.size)
        self.node, self.structure = node, node.structure

    def pull(self, limit: int) -> Block | None:
        start, stop = self.position, min(self.position + limit, self.size)
        if start == stop:
            return None
        self.position = stop
        return Block(self.structure, self.node.columns(start, stop), stop - start)


@dataclasses.dataclass(frozen=True, eq=False)
class Numbered(Counted):
    """A source that describes any of its elements by their numbers."""

    def chosen(self, numbers: np.ndarray) -> list[Column]:
        """Return one column per leaf, for the elements with these numbers."""
        raise NotImplementedError

    def columns(self, start: int, stop: int) -> list[Column]:
        return self.chosen(np.arange(start, stop))

    def reader(self) -> Reader | None:
        structure = self.structure
        return lambda numbers: Block(structure, self.chosen(numbers), len(numbers))


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Numbered):
    """Element ``i`` is row ``i`` of every table."""

    tables: tuple[np.ndarray, ...] = dataclasses.field(default=(), metadata=NOT_COMPARED)
    spec: Any = dataclasses.field(default=None, metadata=NOT_COMPARED)
    name: str = dataclasses.field(default="from_tensor_slices", metadata=NOT_COMPARED)

    @property
    def label(self) -> str:
        leaves = flatten(self.spec)[0]
        return f"{self.name}({self.size} x {', '.join(f'{leaf.dtype}{list(leaf.shape)}' for leaf in leaves)})"

    def chosen(self, numbers: np.ndarray) -> list[Column]:
        return [Gathered(numbers, table) for table in self.tables]


@dataclasses.dataclass(frozen=True, eq=False)
class Range(Numbered):
    """The integers of a range, in a dtype."""

    values: range = range(0)
    dtype: np.dtype = _INT64

    @property
    def label(self) -> str:
        dtype = "" if self.dtype == np.int64 else f", {self.dtype}"
        return f"range({self.values.start}, {self.values.stop}, {self.values.step}{dtype})"

    @property
    def spec(self) -> Any:
        return TensorSpec((), self.dtype)

    def chosen(self, numbers: np.ndarray) -> list[Column]:
        first, step = self.values.start, self.values.step
        return [Dense((first + step * numbers).astype(self.dtype, copy=False))]


def tensors(element: Any) -> Rows:
    """Return a source with one element."""
    leaves, structure = _leaves(element, "from_tensors")
    tables = tuple(_boxed_row(leaf) for leaf in leaves)
    spec = jax.tree_util.tree_unflatten(structure, [spec_of(leaf) for leaf in leaves])
    return Rows(size=1, tables=tables, spec=spec, name="from_tensors")


def tensor_slices(arrays: Any) -> Rows:
    """Return a source whose elements are the rows of ``arrays``.

    Raises:
        ArgumentError: If a component is a scalar.
        DatasetError: If there is nothing to slice.
        ElementError: If the components have different numbers of rows.
    """
    leaves, structure = _leaves(arrays, "from_tensor_slices", keep=_is_swapped)
    names = component_names(structure)
    for name, leaf in zip(names, leaves, strict=True):
        if np.ndim(leaf) == 0:
            raise ArgumentError(
                f"from_tensor_slices: {name} is a scalar and has no rows. Received: {leaf!r}. "
                "Use `from_tensors` for one whole element."
            )
    if len({len(leaf) for leaf in leaves}) > 1:
        sizes = ", ".join(f"{name} has {len(leaf)}" for name, leaf in zip(names, leaves, strict=True))
        raise ElementError(f"from_tensor_slices: all components need the same number of rows, but {sizes}.")
    spec = jax.tree_util.tree_unflatten(structure, [TensorSpec(leaf.shape[1:], leaf.dtype) for leaf in leaves])
    return Rows(size=len(leaves[0]), tables=tuple(leaves), spec=spec)


def integers(*args: int, dtype: np.dtype) -> Range:
    """Return a source of ``range(*args)``."""
    if not 1 <= len(args) <= 3:
        raise ArgumentError(f"range takes 1 to 3 integers: stop, or start, stop and step. Received {len(args)}.")
    if len(args) == 3 and args[2] == 0:
        raise ArgumentError("range: the step must not be 0.")
    values = range(*args)
    return Range(size=len(values), values=values, dtype=dtype)


def _is_swapped(leaf: Any) -> bool:
    """Whether only the byte order of an array is another one. Its rows are copied, but not the whole, which may be a large file."""
    plain = isinstance(leaf, np.ndarray) and not isinstance(leaf, np.ma.MaskedArray)
    return plain and not leaf.dtype.isnative and leaf.dtype.newbyteorder("=") in NUMBERS


def _leaves(element: Any, method: str, keep: Callable[[Any], bool] = lambda _: False) -> tuple[list[Any], Any]:
    leaves, structure = flatten(element)
    if not leaves:
        raise DatasetError(f"{method}: there is no array in {element!r}.")
    names = [lambda i=i: f"{method}: {component_names(structure)[i]}" for i in range(len(leaves))]
    return [leaf if keep(leaf) else as_leaf(leaf, name) for leaf, name in zip(leaves, names, strict=True)], structure


def _boxed_row(leaf: Any) -> np.ndarray:
    """A table with the leaf as its only row."""
    if isinstance(leaf, str | bytes):
        table = np.empty(1, dtype=object)
        table[0] = leaf
        return table
    return np.asarray(leaf)[None]
