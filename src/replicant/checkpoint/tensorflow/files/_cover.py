"""Whether the slices of a tensor have each of its elements once."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...format._boxes import Box, sizes_of
from ._damage import require, shown

_MOST_CELLS = 1 << 24  # of the grid that all corners make; TensorFlow cuts along each axis alone, which makes a cell for each slice


def check_cover(file: Any, key: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Check that boxes have each element of a tensor once. It takes memory for their corners, not for the tensor.

    Raises:
        DamagedCheckpointError: If an element is missing, or is in two of them.
    """
    held, needed = sum(math.prod(sizes_of(box)) for box in boxes), math.prod(shape)
    require(
        held == needed, file, f"the {len(boxes)} slices of {shown(key)} have {held} elements, but its shape {shape} has {needed}"
    )
    full = [box for box in boxes if math.prod(sizes_of(box))]
    corners = [sorted({place for box in full for place in box[axis]}) for axis in range(len(shape))]
    sizes = [max(len(each) - 1, 0) for each in corners]
    require(math.prod(sizes) <= _MOST_CELLS, file, f"the {len(boxes)} slices of {shown(key)} are not a grid, or nearly one")
    places = [{place: i for i, place in enumerate(each)} for each in corners]
    cells = np.zeros(sizes, bool)
    for box in full:
        own = cells[*(slice(place[start], place[stop]) for place, (start, stop) in zip(places, box, strict=True)), ...]
        require(not own.any(), file, f"the slice {box} of {shown(key)} has elements that another slice has, too")
        own[...] = True
