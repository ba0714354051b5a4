"""Index ranges of arrays: a box has a range for each axis. Slices of an array are boxes, and so are the blocks of a slice."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

BLOCK = 1 << 20  # bytes of a slice that have a checksum of their own, at most, unless one element has more

Box: TypeAlias = tuple[tuple[int, int], ...]  # for each axis the first index, and the one after the last


def box_of(index: Sequence[Any] | None, shape: Sequence[int]) -> Box:
    """Return the box of an index of slices, as JAX describes what a device holds.

    >>> box_of((slice(2, 4), slice(None)), (4, 3))
    ((2, 4), (0, 3))
    """
    assert index is not None, "every device has a box"
    return tuple((part.start or 0, size if part.stop is None else part.stop) for part, size in zip(index, shape, strict=True))


def sizes_of(box: Box) -> tuple[int, ...]:
    """Return the shape of what is in a box."""
    return tuple(stop - start for start, stop in box)


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Return the index of `box` in an array that holds only `outer`."""
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, outer, strict=True))


def overlap(one: Box, other: Box) -> Box | None:
    """Return what two boxes have in common, or None.

    >>> overlap(((0, 4), (0, 2)), ((2, 6), (1, 3))), overlap(((0, 2),), ((2, 4),))
    (((2, 4), (1, 2)), None)
    """
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def blocks_of(box: Box, itemsize: int) -> Iterator[Box]:
    """Cut a box into blocks that follow each other in C order, each with at most `BLOCK` bytes.

    >>> list(blocks_of(((0, 2), (0, 3)), itemsize=BLOCK // 2))
    [((0, 1), (0, 2)), ((0, 1), (2, 3)), ((1, 2), (0, 2)), ((1, 2), (2, 3))]
    """
    sizes = sizes_of(box)
    axis = next((axis for axis in range(len(sizes)) if math.prod(sizes[axis + 1 :]) * itemsize <= BLOCK), len(sizes) - 1)
    step = max(1, BLOCK // (math.prod(sizes[axis + 1 :]) * itemsize))
    start, stop = box[axis]
    ranges = [(first, min(first + step, stop)) for first in range(start, stop, step)]
    for outer in itertools.product(*(range(*each) for each in box[:axis])):
        for part in ranges:
            yield (*((i, i + 1) for i in outer), part, *box[axis + 1 :])


def num_blocks(sizes: Sequence[int], itemsize: int) -> int:
    """Return how many blocks a box with these sizes is cut into.

    >>> num_blocks((2, 3), itemsize=BLOCK // 2)
    4
    """
    axis = next((axis for axis in range(len(sizes)) if math.prod(sizes[axis + 1 :]) * itemsize <= BLOCK), len(sizes) - 1)
    step = max(1, BLOCK // (math.prod(sizes[axis + 1 :]) * itemsize))
    return math.prod(sizes[:axis]) * -(-sizes[axis] // step)


def is_grid(boxes: Iterable[Box], shape: Sequence[int]) -> bool:
    """Whether boxes have every element of an array once, as the cells of a grid.

    >>> is_grid([((0, 2), (0, 1)), ((0, 2), (1, 3))], (2, 3)), is_grid([((0, 2), (0, 2)), ((0, 2), (1, 3))], (2, 3))
    (True, False)
    """
    found = list(boxes)
    if any(len(box) != len(shape) for box in found) or len(set(found)) != len(found):
        return False
    ranges = [sorted({box[axis] for box in found}) for axis in range(len(shape))]
    ends = [[0, *(stop for _, stop in each)] for each in ranges]
    follow = all(
        [start for start, _ in each] == end[:-1] and end[-1] == size for each, end, size in zip(ranges, ends, shape, strict=True)
    )
    return follow and len(found) == math.prod(len(each) for each in ranges)
