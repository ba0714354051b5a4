"""Checksums of TensorFlow's files: CRC-32C, "masked" so that data which contains checksums does not yield trivial ones."""

from typing import TypeVar

import google_crc32c
import numpy as np

_Numbers = TypeVar("_Numbers", int, np.ndarray)

_MASK_DELTA = 0xA282EAD8
_TAKES_ARRAYS = google_crc32c.implementation == "c"  # the one in Python takes bytes only


def crc32c(data: bytes | np.ndarray, before: int = 0) -> int:
    """Return the checksum of some bytes, or of an array of them without a copy, that follow those with the checksum `before`.

    >>> crc32c(b"123456789") == crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
    True
    """
    return google_crc32c.extend(before, data if _TAKES_ARRAYS or isinstance(data, bytes) else data.tobytes())


def masked(checksum: _Numbers) -> _Numbers:
    """Return what is written for a checksum, or for an array of them with dtype uint32.

    >>> hex(masked(crc32c(b"")))
    '0xa282ead8'
    """
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF
