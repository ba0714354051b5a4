"""Memory that several processes share.

It has no name: only processes that were given its file descriptor can open it. It is freed with the last of them, however that
process ends.
"""

import mmap
import os
import tempfile
from typing import Any

import numpy as np

PAGE = mmap.ALLOCATIONGRANULARITY
_ALIGNMENT = 64  # bytes; XLA reads such buffers in place


class Memory:
    """A file descriptor of nameless memory."""

    def __init__(self, fd: int):
        self.fd = fd

    @classmethod
    def create(cls, nbytes: int = 0) -> "Memory":
        """Make memory of `nbytes` zeros. Pages that are never written cost nothing."""
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
        """The size of the memory."""
        return os.fstat(self.fd).st_size

    def grow(self, nbytes: int) -> None:
        """Make it at least `nbytes` large."""
        if nbytes > self.nbytes:
            os.ftruncate(self.fd, nbytes)

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        """An array of `nbytes` shared bytes that starts at `offset`, a multiple of PAGE."""
        if not nbytes:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(self.fd, nbytes, offset=offset), np.uint8)

    def duplicate(self) -> "Memory":
        """The same memory under another descriptor."""
        return Memory(os.dup(self.fd))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. Views stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def pages(nbytes: int) -> int:
    """Round `nbytes` up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Make an uninitialised array that XLA can read without a copy."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
