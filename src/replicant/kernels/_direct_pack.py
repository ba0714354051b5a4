"""Copies an array into the parts that it consists of, or parts into the array, one after the other (see `_pack.py`)."""

from typing import Any

from ._frames import ARGUMENTS, NUM_ARGUMENTS, NUM_RESULTS, RESULTS, attribute, buffer, data_of, describe, size_of
from ._machine_code import copy, jit, load


@jit
def _size(array: Any, of_element: Any) -> Any:
    """The size of an array in bytes."""
    size = of_element
    for axis in range(load(array + 32)):
        size *= size_of(array, axis)
    return size


@jit
def _cut(frame: Any, of_element: Any) -> None:
    place = data_of(buffer(frame, ARGUMENTS, 0))
    for i in range(load(frame + NUM_RESULTS)):
        part = buffer(frame, RESULTS, i)
        size = _size(part, of_element)
        copy(data_of(part), place, size)
        place += size


@jit
def _join(frame: Any, of_element: Any) -> None:
    place = data_of(buffer(frame, RESULTS, 0))
    for i in range(load(frame + NUM_ARGUMENTS)):
        part = buffer(frame, ARGUMENTS, i)
        size = _size(part, of_element)
        copy(place, data_of(part), size)
        place += size


def handle(frame: Any) -> Any:
    """What XLA calls. Either there is one argument, which is cut into the results, or one result."""
    if describe(frame):
        return 0
    of_element = attribute(frame, 0)
    if load(frame + NUM_ARGUMENTS) == 1:
        _cut(frame, of_element)
    else:
        _join(frame, of_element)
    return 0
