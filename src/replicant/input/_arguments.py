"""Argument checks that the methods of datasets share."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError


def whole(method: str, name: str, value: Any, minimum: int | None = None) -> int:
    """Return the value as an int.

    Raises:
        ArgumentTypeError: If it is not an integer.
        ArgumentError: If it is below the minimum.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{method}: {name} must be an integer. Received: {value!r}.") from None
    if minimum is not None and number < minimum:
        raise ArgumentError(f"{method}: {name} must be at least {minimum}. Received: {number}.")
    return number


def calls_in_parallel(method: str, value: Any, name: str = "num_parallel_calls") -> int | None:
    """Return a number of parallel calls: None, AUTOTUNE (-1) or at least 1.

    Raises:
        ArgumentTypeError: If it is not an integer.
        ArgumentError: If it is 0 or below -1.
    """
    number = None if value is None else whole(method, name, value, -1)
    if number == 0:
        raise ArgumentError(f"{method}: {name} must be None, AUTOTUNE (-1) or at least 1. Received: 0.")
    return number


def function(method: str, value: Any) -> Callable[..., Any]:
    """Return the value if it can be called.

    Raises:
        ArgumentTypeError: If it cannot be called.
    """
    if not callable(value):
        raise ArgumentTypeError(f"{method} takes a function of one element. Received: {value!r}.")
    return value


def number_dtype(method: str, value: Any, name: str = "output_type", kinds: str = "iuf") -> np.dtype:
    """Return a dtype of numbers of these kinds, as NumPy calls them.

    Raises:
        ArgumentTypeError: If it is something else.
    """
    try:
        dtype = np.dtype(value)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in kinds:
        numbers = "numbers" if "f" in kinds else "integers"
        raise ArgumentTypeError(f"{method}: {name} must be a dtype of {numbers}, such as 'int32'. Received: {value!r}.")
    return dtype
