"""Reads a large range of a file on this machine on several threads, each of which sums up what it has just read."""

import ctypes
import os
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from mmap import PAGESIZE
from typing import Any

import numpy as np

from ...._crc32c import crc32c, joined
from ...folders._threads import MOST, run_all
from ._pages import taker

# Bytes that are worth a thread. From there on, NumPy asks the system for pages of 2 MiB. Where those have to be cleared of files
# first, or a virtual machine has not used its memory yet, they take three times as long as all of the reading. Python does not.
LEAST = 4 << 20
_PIECE = 1 << 20  # bytes that are summed up while they are in the cache of the processor

_bytearray: Callable[[None, int], bytearray] = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def read_summed(descriptor: int, start: int, size: int) -> tuple[np.ndarray, int]:
    """Return the bytes of a range in memory of its own, and their CRC-32C.

    Raises:
        OSError: If they cannot be read.
        EOFError: If the file ends before.
        MemoryError: If there is no room for them.
    """
    if size < LEAST:
        data = np.empty(size, np.uint8)
        return data, _fill(descriptor, start, data, None)
    data = np.frombuffer(_bytearray(None, size), np.uint8)
    take = taker(data)
    num_shares = min(MOST, size // LEAST)
    cuts = list(pairwise([size * i // num_shares // PAGESIZE * PAGESIZE for i in range(num_shares)] + [size]))
    tasks = [partial(_fill, descriptor, start + first, data[first:last], take) for first, last in cuts]
    checksum = 0
    for each, (first, last) in zip(run_all(tasks), cuts, strict=True):
        checksum = joined(checksum, each, last - first)
    return data, checksum


def _fill(descriptor: int, start: int, room: np.ndarray, take: "Callable[[np.ndarray], Any] | None") -> int:
    """Fill an array, and return the checksum of what is in it then."""
    checksum = 0
    for first in range(0, len(room), _PIECE):
        piece = room[first : first + _PIECE]
        if take is not None:
            take(piece)
        _read(descriptor, start + first, piece.data)
        checksum = crc32c(piece, checksum)
    return checksum


def _read(descriptor: int, start: int, view: Any) -> None:
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], start + done)
        if not count:
            raise EOFError
        done += count
