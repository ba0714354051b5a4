"""Files of records, each of which holds some elements: the elements are collected for writing, and found again by their numbers."""

from collections.abc import Callable, Iterable
from typing import BinaryIO

import numpy as np

from ...._whole_file import WholeFile
from ...graph._blocks import Block, Boxed, concatenate
from ..records._tfrecord import record_parts
from ._block_bytes import encoded_blocks

ELEMENTS = 256  # in a record
_BYTES = 8 << 20  # of arrays that arrive one by one, which can be whole batches


class RecordWriter:
    """Writes elements to a file once there are enough for a record.

    Args:
        file: The file, from whose place on they are written.
        compressed: Compresses a record.

    Attributes:
        blocks: Where each record begins, and how many elements it holds.
    """

    def __init__(self, file: BinaryIO | WholeFile, compressed: Callable[[bytes], bytes] = bytes) -> None:
        self._file, self._compressed = file, compressed
        self.blocks: list[tuple[int, int]] = []
        self._waiting: list[Block] = []
        self._num_waiting = self._bytes_waiting = 0

    def add(self, block: Block) -> None:
        """Add elements.

        Raises:
            OSError: If they cannot be written.
        """
        self._waiting.append(block)
        self._num_waiting += block.size
        self._bytes_waiting += sum(getattr(leaf, "nbytes", 0) for c in block.columns if isinstance(c, Boxed) for leaf in c.refs)
        if self._num_waiting >= ELEMENTS or self._bytes_waiting >= _BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits.

        Raises:
            OSError: If it cannot be written.
        """
        waiting, self._waiting = self._waiting, []
        self._num_waiting = self._bytes_waiting = 0
        for size, data in encoded_blocks(concatenate(waiting), ELEMENTS) if waiting else ():
            self.blocks.append((self._file.tell(), size))
            self._file.writelines(record_parts(self._compressed(data)))


class RecordsByNumber:
    """Finds elements by their numbers. One record is in memory at a time.

    Args:
        counts: The number of elements of each record.
    """

    def __init__(self, counts: Iterable[int]) -> None:
        self._numbers = np.cumsum([0, *counts])  # of the first element of each, and of the end
        self._current: tuple[int, Block] | None = None

    def take(self, start: int, limit: int, read: Callable[[int], Block]) -> Block | None:
        """Return the elements from a number on: at most ``limit``, and None at the end. ``read`` reads a record by its number."""
        if start >= self._numbers[-1]:
            return None
        number = int(np.searchsorted(self._numbers, start, side="right")) - 1
        if self._current is None or self._current[0] != number:
            self._current = (number, read(number))
        first = start - int(self._numbers[number])
        return self._current[1].take(slice(first, first + limit))
