"""Memory that several processes share.

It has no name: who is not given its file descriptor cannot open it, and it goes with the last process that
holds it, however that one ends.
"""

import mmap
import os
import tempfile
from typing import Any

import numpy as np

PAGE = mmap.ALLOCATIONGRANULARITY
_ALIGNMENT = 64  # of buffers that XLA reads in place


class Memory:
    """A file descriptor of nameless memory, and the parts of it that this process has looked at."""

    def __init__(self, fd: int):
        self.fd = fd

    @classmethod
    def create(cls, nbytes: int = 0) -> "Memory":
        """New memory of `nbytes`, all zeros. Pages that are never written cost nothing."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("replicant", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        memory = cls(fd)
        memory.grow(nbytes)
        return memory

    @property
    def nbytes(self) -> int:
        """How much memory there is."""
        return os.fstat(self.fd).st_size

    def grow(self, nbytes: int) -> None:
        """Make it at least `nbytes`."""
        if nbytes > self.nbytes:
            os.ftruncate(self.fd, nbytes)

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        """`nbytes` from `offset` (a multiple of PAGE) as an array of bytes that all processes see."""
        if not nbytes:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self.fd, nbytes, offset=offset), np.uint8)

    def duplicate(self) -> "Memory":
        """The same memory under another descriptor."""
        return Memory(os.dup(self.fd))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; views stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def pages(nbytes: int) -> int:
    """`nbytes` rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array that XLA can read without a copy."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
