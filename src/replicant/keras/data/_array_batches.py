"""Gathers all batches of one execution at once from arrays in memory.

Keras draws the order of the rows and gathers each batch separately. This module keeps its order and draws it at the same moments.
But where ``steps_per_execution`` asks for several batches, one gather copies their rows into the stack that the program takes.
"""

import dataclasses
import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, Self

import jax
import numpy as np

from .. import _internals
from ._batch_dtypes import no_overflow, own_batch


@dataclasses.dataclass(frozen=True)
class Several:
    """`count` batches of equal shapes, stacked along a new first axis."""

    count: int
    stacked: Any

    def map(self, function: Callable[[Any], Any]) -> "Several":
        """Return the same batches with another stack, which the function makes of theirs."""
        return Several(self.count, function(self.stacked))

    def unstacked(self) -> list[Any]:
        """Return the batches one by one."""
        return [jax.tree.map(operator.itemgetter(i), self.stacked) for i in range(self.count)]


def several(batches: Iterator[Any], num: int) -> list[Any]:
    """Return the next `num` batches, or all that are left. Some of them may be combined as `Several`."""
    at_once = getattr(batches, "several", None)
    return list(itertools.islice(batches, num)) if at_once is None else at_once(num)


class Rows:
    """Keras's batches of NumPy arrays, in Keras's order.

    Args:
        tables: The arrays that the rows come from.
        tree: The structure of a batch, whose leaves are the tables.
        order: The rows of each batch, as a slice or as an array of row numbers.
    """

    def __init__(self, tables: list[np.ndarray], tree: Any, order: Iterator[slice | np.ndarray]):
        self._tables, self._tree, self._order = tables, tree, order

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._gathered(next(self._order))

    def several(self, num: int) -> list[Any]:
        """Return the next `num` batches, as the function of this name does."""
        runs = itertools.groupby(itertools.islice(self._order, num), _length)
        return [self._run(list(run), length) for length, run in runs]

    def _run(self, run: list[Any], length: int) -> Any:
        if len(run) == 1:
            return self._gathered(run[0])
        if isinstance(run[0], slice):
            rows: Any = np.arange(run[0].start, run[-1].stop)
        else:
            rows = np.concatenate(run)
        return Several(len(run), self._gathered(rows.reshape(len(run), length)))

    def _gathered(self, rows: slice | np.ndarray) -> Any:
        return self._tree.unflatten([_take(table, rows) for table in self._tables])


def _take(table: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
    """Return ``table[rows]`` in NumPy's faster way: `take` would first copy a table that is not C-contiguous."""
    if isinstance(rows, slice) or table.ndim == 1 or not table.flags.c_contiguous:
        return table[rows]
    return np.take(table, rows, axis=0)


def _length(rows: slice | np.ndarray) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def rows_of(adapter: Any, otherwise: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Iterate once over what Keras's adapter holds: as `Rows` if it holds dense arrays, else as `otherwise` does.

    Code of users may write to the arrays of a batch again before it makes the next one, for which Keras's loops ask ahead. So such
    batches are copies.
    """
    if type(adapter) is _internals.GeneratorDataAdapter:  # copies already: Keras has read the first ones
        return otherwise()
    if type(adapter) is not _internals.ArrayDataAdapter:
        return map(own_batch, otherwise())
    with no_overflow(adapter._inputs):
        leaves, tree = jax.tree.flatten(_internals.convert_to_sliceable(adapter._inputs, target_backend="jax"))
    if not all(type(leaf) is _internals.NumpySliceable for leaf in leaves):
        return otherwise()
    order: Any = adapter._get_iterator(lambda _, indices: indices, 0)  # yields the row numbers instead of the rows
    return Rows([np.asarray(leaf.array) for leaf in leaves], tree, order)
