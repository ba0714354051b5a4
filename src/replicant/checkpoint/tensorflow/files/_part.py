"""The part of a tensor that somebody asks for."""

from collections.abc import Sequence
from typing import Any

from ....errors import ArgumentError
from ...format._boxes import Box, box_of
from ._damage import shown


def checked_part(key: str, index: Sequence[Any], shape: tuple[int, ...]) -> Box:
    """Return the box of an index.

    Raises:
        ArgumentError: If it is not a slice with step 1 within the tensor for each axis.

    >>> checked_part("kernel", (slice(2, 4), slice(None)), (4, 3))
    ((2, 4), (0, 3))
    """
    is_index = len(index) == len(shape) and all(isinstance(part, slice) and part.step in (None, 1) for part in index)
    box = box_of(index, shape) if is_index else ()
    if not is_index or not all(0 <= start <= stop <= size for (start, stop), size in zip(box, shape, strict=True)):
        raise ArgumentError(
            f"read_part: {index!r} is not part of {shown(key)}, whose shape is {shape}. Pass a tuple of one slice for each axis, "
            "within it and with step 1."
        )
    return box
