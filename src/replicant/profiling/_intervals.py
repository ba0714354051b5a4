"""Sets of points in time, as sorted lists of intervals that do not touch each other."""

import bisect
from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


class Times:
    """The points in time that belong to at least one of some intervals.

    >>> times = Times([(5, 6), (1, 2), (1.5, 3)])
    >>> times.intervals, times.within(0, 5.5), times.within(2.5, 4)
    ([(1, 3), (5, 6)], 2.5, 0.5)
    """

    def __init__(self, intervals: Iterable[Interval]):
        self.intervals: list[Interval] = []
        for begin, end in sorted(intervals):
            if self.intervals and begin <= self.intervals[-1][1]:
                self.intervals[-1] = (self.intervals[-1][0], max(end, self.intervals[-1][1]))
            elif end > begin:
                self.intervals.append((begin, end))
        self._ends = [end for _, end in self.intervals]

    def within(self, begin: float, end: float) -> float:
        """Return how much of the time from `begin` to `end` belongs to the set."""
        total, index = 0.0, bisect.bisect_right(self._ends, begin)
        while index < len(self.intervals) and self.intervals[index][0] < end:
            total += min(end, self.intervals[index][1]) - max(begin, self.intervals[index][0])
            index += 1
        return total


def union(sets: Sequence[Times]) -> Times:
    """Return the points in time that belong to at least one of the sets.

    >>> union([Times([(0, 1)]), Times([(0.5, 2)])]).intervals
    [(0, 2)]
    """
    return Times([interval for times in sets for interval in times.intervals])
