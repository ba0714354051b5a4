"""A column of lists of different lengths, whose items lie one after the other in one array."""

from collections.abc import Callable

import numpy as np

from ...graph._blocks import Boxed, Column
from ...graph._memory import check_room


class Lists(Column):
    """Row ``i`` of the table is ``values[ends[i]:ends[i + 1]]``. References are numbers of rows."""

    __slots__ = ("ends", "values")

    def __init__(self, refs: np.ndarray, values: np.ndarray, ends: np.ndarray) -> None:
        super().__init__(refs)
        self.values, self.ends = values, ends

    def with_refs(self, refs: np.ndarray) -> "Lists":
        return Lists(refs, self.values, self.ends)

    def fits(self, other: Column) -> bool:
        return isinstance(other, Lists) and other.values is self.values and other.ends is self.ends

    @property
    def lengths(self) -> np.ndarray:
        """The number of items of each row."""
        return self.ends[self.refs + 1] - self.ends[self.refs]

    def stack(self, name: Callable[[], str]) -> np.ndarray:
        lengths = self.lengths
        if len(lengths) and (lengths != lengths[0]).any():
            return Boxed(self.rows()).stack(name)  # raises, and says which rows differ
        return self.padded(int(lengths[0]) if len(lengths) else 0, 0, name)

    def padded(self, size: int, filler: object, name: Callable[[], str]) -> np.ndarray:
        """Stack all rows in one array in which each has ``size`` items; ``filler`` stands for those that it lacks."""
        lengths, inner = self.lengths, self.values.shape[1:]
        check_room(name, (len(lengths), size, *inner), self.values.dtype)
        out = np.full((len(lengths), size, *inner), filler, self.values.dtype)
        total = int(lengths.sum())
        within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        out[np.arange(size) < lengths[:, None]] = self.values[np.repeat(self.ends[self.refs], lengths) + within]
        return out

    def rows(self) -> np.ndarray:
        # Copies, so that one row that is kept does not keep all others in memory.
        return Boxed.of([self.values[self.ends[ref] : self.ends[ref + 1]].copy() for ref in self.refs]).refs
