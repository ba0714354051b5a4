"""Blocks: what flows through the graph. A block is a run of consecutive elements, one column per component.

A column keeps one small *reference* per element in ``refs`` and makes the elements only when asked. Transforms that
choose or reorder elements (shuffle, shard, take, repeat) therefore move only references, and ``batch`` gathers once::

    Gathered   refs = row numbers in a table (the user's array)       from_tensor_slices
    Dense      refs = the rows themselves, in one array               range, unbatch
    Boxed      refs = one object per element                          map, batch, anything of varying shape

Arrays that leave a block are never written to again: JAX may alias their memory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ...errors import ElementError
from ._memory import check_room
from ._structure import STRING, component_names, flatten, show_structure


class Column:
    """One component of a run of elements."""

    __slots__ = ("refs",)

    def __init__(self, refs: np.ndarray) -> None:
        self.refs = refs

    def with_refs(self, refs: np.ndarray) -> "Column":
        """Return the same kind of column over other references."""
        return type(self)(refs)

    def fits(self, other: "Column") -> bool:
        """Return whether the references of both mean the same, so that they can be mixed."""
        raise NotImplementedError

    def stack(self, name: Callable[[], str]) -> np.ndarray:
        """Stack all elements in one array with a new leading dimension. ``name`` returns the name for messages."""
        raise NotImplementedError

    def rows(self) -> np.ndarray:
        """Return the elements one by one. The caller may keep them."""
        raise NotImplementedError


class Gathered(Column):
    """Rows of a table, by number."""

    __slots__ = ("table",)

    def __init__(self, refs: np.ndarray, table: np.ndarray) -> None:
        super().__init__(refs)
        self.table = table

    def with_refs(self, refs: np.ndarray) -> "Gathered":
        return Gathered(refs, self.table)

    def fits(self, other: Column) -> bool:
        return isinstance(other, Gathered) and other.table is self.table

    def stack(self, name: Callable[[], str]) -> np.ndarray:
        check_room(name, (len(self.refs), *self.table.shape[1:]), self.table.dtype)
        return self.rows()

    def rows(self) -> np.ndarray:
        table = self.table
        # `take` is faster, but first copies a table that is not contiguous.
        rows = table.take(self.refs, axis=0) if table.flags.c_contiguous else table[self.refs]
        return rows if rows.dtype.isnative else rows.astype(rows.dtype.newbyteorder("="))


class Dense(Column):
    """Rows held in one array."""

    __slots__ = ()

    def fits(self, other: Column) -> bool:
        mine, its = self.refs, other.refs
        return isinstance(other, Dense) and mine.dtype == its.dtype and mine.shape[1:] == its.shape[1:]

    def stack(self, name: Callable[[], str]) -> np.ndarray:
        return self.refs

    def rows(self) -> np.ndarray:
        return self.refs


_TEXTS = {str, bytes}


def check_no_lists(name: Callable[[], str], types: set[type]) -> None:
    """Check that no element is lists in lists, which ragged features of TFDS are.

    Raises:
        ElementError: If one is.
    """
    if list in types:
        raise ElementError(
            f"{name()} is lists in lists, which may have different lengths and fit into no array. Pad them to one shape in `map`, "
            "or leave the component out there."
        )


class Boxed(Column):
    """One Python object per element: an array, a NumPy scalar or a string."""

    __slots__ = ()

    @staticmethod
    def of(leaves: Sequence[Any] | np.ndarray) -> "Boxed":
        refs = np.empty(len(leaves), dtype=object)
        for i, leaf in enumerate(leaves):
            refs[i] = leaf
        return Boxed(refs)

    def fits(self, other: Column) -> bool:
        return isinstance(other, Boxed)

    def stack(self, name: Callable[[], str]) -> np.ndarray:
        leaves = self.refs
        types = set(map(type, leaves.tolist()))
        if types <= _TEXTS:  # common, and NumPy is slow at finding it out
            return leaves.copy()
        check_no_lists(name, types)
        kinds = {(np.shape(leaf), getattr(leaf, "dtype", STRING)) for leaf in leaves}
        if len(kinds) > 1:
            raise ElementError(_mixed_message(name(), leaves))
        (shape, dtype) = kinds.pop()
        if not shape and dtype == STRING:
            if not all(isinstance(leaf, str | bytes) for leaf in leaves):
                raise ElementError(
                    f"{name()} is a dataset, and datasets cannot be stacked in a batch. Make elements of them first, as "
                    "`window(3).flat_map(lambda window: window.batch(3))` does."
                )
            return leaves.copy()
        check_room(name, (len(leaves), *shape), dtype)
        out = np.empty((len(leaves), *shape), dtype)
        for i, leaf in enumerate(leaves):
            out[i] = leaf
        return out

    def rows(self) -> np.ndarray:
        return self.refs


class Block:
    """A run of elements: their structure and one column per leaf."""

    __slots__ = ("columns", "size", "structure")

    def __init__(self, structure: Any, columns: Sequence[Column], size: int) -> None:
        self.structure = structure
        self.columns = tuple(columns)
        self.size = size

    @staticmethod
    def of_elements(structure: Any, leaves: Sequence[Sequence[Any]]) -> "Block":
        """Make a block from the leaves of its elements."""
        return Block(structure, [Boxed.of(column) for column in zip(*leaves, strict=True)], len(leaves))

    @staticmethod
    def one(element: Any) -> "Block":
        """Make a block of one element whose leaves are already arrays."""
        leaves, structure = flatten(element)
        return Block.of_elements(structure, [leaves])

    def take(self, chosen: np.ndarray | slice) -> "Block":
        """Return the elements at these places, in this order."""
        size = len(range(*chosen.indices(self.size))) if isinstance(chosen, slice) else len(chosen)
        return Block(self.structure, [column.with_refs(column.refs[chosen]) for column in self.columns], size)

    def stack(self) -> Any:
        """Return one element whose leaves are the stacked leaves of all elements.

        Raises:
            ElementError: If the elements differ in shape or dtype.
        """
        arrays = [column.stack(lambda i=i: component_names(self.structure)[i]) for i, column in enumerate(self.columns)]
        return jax.tree_util.tree_unflatten(self.structure, arrays)

    def leaves(self) -> Iterator[tuple[Any, ...]]:
        """Return the leaves of each element."""
        if not self.columns:
            return iter([()] * self.size)
        return zip(*(column.rows() for column in self.columns), strict=True)

    def elements(self) -> Iterator[Any]:
        """Yield the elements one by one."""
        for leaves in self.leaves():
            yield jax.tree_util.tree_unflatten(self.structure, leaves)

    def aligned(self, other: "Block") -> tuple["Block", "Block"]:
        """Return both blocks with columns whose references can be mixed.

        Raises:
            ElementError: If the blocks differ in structure.
        """
        if self.structure != other.structure:
            raise ElementError(
                "Elements of one dataset must have the same structure. "
                f"Found: {show_structure(self.structure)} and {show_structure(other.structure)}. "
                "Return the same structure from every branch."
            )
        if all(a.fits(b) for a, b in zip(self.columns, other.columns, strict=True)):
            return self, other
        return self.boxed(), other.boxed()

    def boxed(self) -> "Block":
        """Return the same elements, each in a box. The result fits every other block of boxes."""
        if all(isinstance(column, Boxed) for column in self.columns):
            return self
        return Block(self.structure, [Boxed.of(column.rows()) for column in self.columns], self.size)


def concatenate(blocks: Sequence[Block]) -> Block:
    """Join the elements of all blocks, in order."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if not all(first.structure == b.structure and all(map(_fit, first.columns, b.columns)) for b in blocks):
        for other in blocks[1:]:
            first.aligned(other)
        blocks = [block.boxed() for block in blocks]
        first = blocks[0]
    columns = [
        column.with_refs(np.concatenate([block.columns[i].refs for block in blocks])) for i, column in enumerate(first.columns)
    ]
    return Block(first.structure, columns, sum(block.size for block in blocks))


def _fit(a: Column, b: Column) -> bool:
    return a.fits(b)


def _mixed_message(name: str, leaves: np.ndarray) -> str:
    """A message that says which elements of the batch differ, and how."""
    first = leaves[0]
    for i, leaf in enumerate(leaves):
        if np.shape(leaf) != np.shape(first):
            return (
                f"{name} has shape {np.shape(first)} in element 0 of the batch and {np.shape(leaf)} in element {i}: "
                "elements of one batch need the same shape. Pad or cut them in `map` before `batch`."
            )
        if getattr(leaf, "dtype", STRING) != getattr(first, "dtype", STRING):
            return (
                f"{name} has dtype {getattr(first, 'dtype', 'string')} in element 0 of the batch and "
                f"{getattr(leaf, 'dtype', 'string')} in element {i}: elements of one batch need the same dtype. "
                "Convert them in `map`."
            )
    raise AssertionError("the elements agree")
