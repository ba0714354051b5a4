"""Checksums of TensorFlow's files: CRC-32C, "masked" so that data which contains checksums does not yield trivial ones."""

from functools import cache
from typing import TypeVar

import google_crc32c
import numpy as np

_Numbers = TypeVar("_Numbers", int, np.ndarray)

_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78  # without x^32. The highest bit of a number here is the coefficient of x^0
_ONE = 1 << 31
_TAKES_ARRAYS = google_crc32c.implementation == "c"  # the one in Python takes bytes only


def crc32c(data: bytes | np.ndarray, before: int = 0) -> int:
    """Return the checksum of some bytes, or of an array of them without a copy, that follow those with the checksum `before`.

    >>> crc32c(b"123456789") == crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    True
    """
    return google_crc32c.extend(before, data if _TAKES_ARRAYS or isinstance(data, bytes) else data.tobytes())


def joined(first: int, second: int, size: int) -> int:
    """Return the checksum of bytes of which two parts were summed up apart; the second part has `size` bytes.

    >>> joined(crc32c(b"12345"), crc32c(b"6789"), 4) == crc32c(b"123456789")
    True
    """
    for power in range(size.bit_length()):
        if size >> power & 1:
            first = _product(first, _zeros(power))
    return first ^ second


@cache
def _zeros(power: int) -> int:
    """What 2**power bytes of zeros multiply a checksum by: x to the power of their bits."""
    return _product(_zeros(power - 1), _zeros(power - 1)) if power else _ONE >> 8


def _product(a: int, b: int) -> int:
    """The product of two polynomials over the field of 0 and 1, divided with the remainder by that of CRC-32C."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def masked(checksum: _Numbers) -> _Numbers:
    """Return what is written for a checksum, or for an array of them with dtype uint32.

    >>> hex(masked(crc32c(b"")))
    '0xa282ead8'
    """
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF
