"""Plain Python values, and when one of them may stand for another: if type and value are equal, of floats all bits."""

import enum
import struct
from typing import Any

import numpy as np

PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, np.dtype)
_bits = struct.Struct("=d").pack


def plain_key(value: Any) -> tuple[Any, ...]:
    """Return what is equal for two plain values between which no code can tell.

    >>> plain_key(0.0) == plain_key(-0.0), plain_key(1) == plain_key(1.0), plain_key(float("nan")) == plain_key(float("nan"))
    (False, False, True)
    """
    if isinstance(value, float):
        return type(value), value if value and value == value else _bits(value)  # noqa: PLR0124 - NaN is not equal to itself
    if isinstance(value, complex):
        return type(value), _bits(value.real), _bits(value.imag)
    return type(value), value
