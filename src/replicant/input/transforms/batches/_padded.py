"""Batches of elements of different sizes, which are padded to the same size."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ....errors import ArgumentError, ElementError
from ...files.columns._lists import Lists
from ...graph._blocks import Block, Boxed, Column, Dense, check_no_lists
from ...graph._memory import check_room
from ...graph._structure import STRING, TensorSpec, component_names, flatten, show_structure
from ._batch import Batch

# Sizes to pad to; None means the largest in the batch.
Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class PaddedBatch(Batch):
    """Like `Batch`, but each component is padded to its shape, or in every dimension if ``shapes`` is None.

    ``values`` is one value, or a structure of them; None means 0, False or an empty string.
    """

    shapes: Any = None
    values: Any = None

    @property
    def label(self) -> str:
        drop = ", drop_remainder=True" if self.drop_remainder else ""
        shapes = "" if self.shapes is None else f", padded_shapes={self.shapes}"
        return f"padded_batch({self.sizes[0]}{shapes}{drop})"

    @property
    def spec(self) -> Any:
        spec = self.input.spec
        if spec is None:
            return None
        leaves, structure = flatten(spec)
        shapes = self._shapes([len(leaf.shape) for leaf in leaves], structure)
        size = self.sizes[0] if self.drop_remainder else None
        specs = [TensorSpec((size, *shape), leaf.dtype) for shape, leaf in zip(shapes, leaves, strict=True)]
        return jax.tree_util.tree_unflatten(structure, specs)

    def stacked(self, block: Block) -> Any:
        names = component_names(block.structure)
        for name, column in zip(names, block.columns, strict=True):
            if isinstance(column, Boxed):
                check_no_lists(lambda name=name: f"padded_batch: {name}", set(map(type, column.refs.tolist())))
        ranks = [np.ndim(column.with_refs(column.refs[:1]).rows()[0]) for column in block.columns]
        shapes = self._shapes(ranks, block.structure)
        values = self._values(block.structure)
        leaves = [_padded(*each) for each in zip(block.columns, shapes, values, names, strict=True)]
        return jax.tree_util.tree_unflatten(block.structure, leaves)

    def _shapes(self, ranks: list[int], structure: Any) -> list[Shape]:
        """One shape per component."""
        if self.shapes is None:
            return [(None,) * rank for rank in ranks]
        shapes, its = jax.tree_util.tree_flatten(self.shapes, is_leaf=_is_shape)
        if its != structure:
            raise ElementError(
                f"padded_batch: padded_shapes has the structure {show_structure(its)}, but elements have "
                f"{show_structure(structure)}. Give one shape per component."
            )
        for name, shape, rank in zip(component_names(structure), shapes, ranks, strict=True):
            if len(shape) != rank:
                raise ElementError(
                    f"padded_batch: {name} has {rank} dimensions, but its padded shape {list(shape)} has {len(shape)}."
                )
        return [tuple(None if size == -1 else size for size in shape) for shape in shapes]

    def _values(self, structure: Any) -> list[Any]:
        """One padding value per component."""
        values, its = jax.tree_util.tree_flatten(self.values, is_leaf=lambda value: value is None)
        if its == structure:
            return values
        if len(values) == 1 and not isinstance(self.values, tuple | dict):
            return values * structure.num_leaves
        raise ElementError(
            f"padded_batch: padding_values has the structure {show_structure(its)}, but elements have "
            f"{show_structure(structure)}. Give one value for all, or one per component."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class RowBatch(PaddedBatch):
    """Batches of the rows of tables, whose spec is sure: a size that it knows stays known. Lists are padded to the longest."""

    @property
    def label(self) -> str:
        return f"batch_rows({self.sizes[0]})"

    @property
    def spec(self) -> Any:
        return super(PaddedBatch, self).spec


def checked_shapes(shapes: Any) -> Any:
    """Return the argument ``padded_shapes``. A number alone is the shape of a vector.

    Raises:
        ArgumentError: If a size is neither None nor an integer of at least -1.
    """
    if isinstance(shapes, int | np.integer) and not isinstance(shapes, bool):
        shapes = [int(shapes)]
    for leaf in jax.tree_util.tree_leaves(shapes, is_leaf=_is_shape):
        if not _is_shape(leaf) or any(size is not None and size < -1 for size in leaf):
            raise ArgumentError(
                "padded_batch: padded_shapes must be a shape such as [None, 3], or a structure of shapes like that of the "
                f"elements. Received: {leaf!r}."
            )
    return shapes


def _is_shape(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(size is None or isinstance(size, int) for size in value)


def _padded(column: Column, shape: Shape, value: Any, name: str) -> np.ndarray:
    """All elements of a column, padded and stacked in one array."""
    if isinstance(column, Dense) and set(shape) <= {None}:
        return column.stack(lambda: name)
    if isinstance(column, Lists) and set(shape) <= {None} and len(column.refs):
        filler = _filler(value, column.values.dtype, [column.values], name)
        return column.padded(int(column.lengths.max()), filler, lambda: name)
    rows = list(column.rows())
    ranks = {np.ndim(row) for row in rows}
    if len(ranks) > 1:
        raise ElementError(f"padded_batch: {name} has elements with {' and '.join(map(str, sorted(ranks)))} dimensions.")
    if not shape:
        return column.stack(lambda: name)
    largest = np.max([row.shape for row in rows], axis=0).tolist()
    sizes = tuple(most if size is None else size for most, size in zip(largest, shape, strict=True))
    if any(most > size for most, size in zip(largest, sizes, strict=True)):
        raise ElementError(
            f"padded_batch: {name} has an element of size {largest}, which is larger than the padded shape {list(sizes)}. "
            "Padding never cuts: use a larger size, or None for the largest of each batch."
        )
    dtypes = {row.dtype for row in rows if row.size} or {rows[0].dtype}  # an empty list has no dtype of its own
    if len(dtypes) > 1:
        raise ElementError(f"padded_batch: {name} has elements of dtypes {', '.join(sorted(map(str, dtypes)))}.")
    (dtype,) = dtypes
    check_room(lambda: name, (len(rows), *sizes), dtype)
    out = np.full((len(rows), *sizes), _filler(value, dtype, rows, name), dtype)
    for i, row in enumerate(rows):
        out[(i, *map(slice, row.shape))] = row
    return out


def _filler(value: Any, dtype: np.dtype, rows: list[Any], name: str) -> Any:
    """The padding value in the dtype of the component."""
    if dtype == STRING:
        first = next((row.flat[0] for row in rows if row.size), "")
        return type(first)() if value is None else value
    if value is None:
        return 0
    try:
        with np.errstate(over="ignore"):
            filler = np.asarray(value).astype(dtype, casting="same_kind") if hasattr(value, "dtype") else np.asarray(value, dtype)
        may_be_rounded = np.issubdtype(dtype, np.inexact)
        exact = bool(np.isfinite(filler) or not np.isfinite(value)) if may_be_rounded else bool(filler == value)
    except (TypeError, ValueError, OverflowError):
        exact = False
        filler = None
    if not exact:
        raise ElementError(f"padded_batch: the padding value {value!r} does not fit {name}, which is {dtype}.")
    return filler
