"""The bytes of one tensor, or of one slice of it, as they are in a data file of a bundle, turned into values."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from ...._crc32c import crc32c, masked
from ...format._boxes import BLOCK, Box, blocks_of, overlap, sizes_of, within
from ...format._files import array_of
from ._damage import damaged, reading, shown
from ._entry import Entry
from ._file_bytes import FileBytes
from ._strings import strings_of


class TensorBytes:
    """The bytes of a tensor or slice.

    Args:
        file: The data file.
        key: The name of the tensor.
        entry: What the index says about it, from which `check_size` has not raised.
        dtype: Its dtype.
        big_endian: Whether numbers begin with the high byte.
    """

    def __init__(self, file: FileBytes, key: str, entry: Entry, dtype: np.dtype, big_endian: bool):
        self._file, self._key, self._entry, self._dtype, self._big_endian = file, key, entry, dtype, big_endian
        self._of, self._count = f" of {shown(key)}", math.prod(entry.shape)

    def require_there(self) -> None:
        """Check that the file has the bytes, without reading them.

        Raises:
            CheckpointError: If it has not.
        """
        self._file.require_there(self._entry.offset, self._entry.size, self._of)

    def read(self) -> np.ndarray:
        """Read the values into memory of their own.

        Raises:
            CheckpointError: If they cannot be read, or are damaged.
        """
        data, checksum = self._file.read_summed(self._entry.offset, self._entry.size, self._of)
        if self._dtype.hasobject:
            with reading(self._file.path, self._of):
                strings, checksum = strings_of(self._file.path, data, self._count, self._big_endian, self._of)
                self._check(checksum)
                return strings.reshape(self._entry.shape)
        self._check(checksum)
        return self._array(data, self._entry.shape)

    def read_into(self, own: Box, boxes: Sequence[tuple[Box, np.ndarray]]) -> None:
        """Read the values a piece at a time, and copy those that belong to some boxes.

        Args:
            own: The box of the values in the tensor.
            boxes: Boxes of the same tensor, each with the array of its values.

        Raises:
            CheckpointError: As `read`. The arrays may have been written to already.
        """
        if self._dtype.hasobject or not self._count or not own:
            _copy(self.read(), own, boxes)
            return
        checksum = 0
        for run, data in self._runs(own):
            checksum, at = crc32c(data, checksum), 0
            for block in run:
                size = self._num_bytes(block)
                if any(overlap(block, box) is not None for box, _ in boxes):
                    _copy(self._array(data[at : at + size], sizes_of(block)), block, boxes)
                at += size
        self._check(checksum)

    def _runs(self, own: Box) -> Iterator[tuple[list[Box], np.ndarray]]:
        """Blocks that follow each other, and the bytes of all of them."""
        blocks, most = blocks_of(own, self._dtype.itemsize), self._file.piece // BLOCK
        runs = list(iter(lambda: list(islice(blocks, most)), []))
        sizes = (sum(map(self._num_bytes, run)) for run in runs)
        return zip(runs, self._file.pieces(self._entry.offset, sizes, self._entry.size, self._of), strict=True)

    def _num_bytes(self, box: Box) -> int:
        return math.prod(sizes_of(box)) * self._dtype.itemsize

    def _array(self, data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        word = self._dtype.itemsize // (2 if self._dtype.kind == "c" else 1)
        if self._big_endian and word > 1:
            data.view(f"u{word}").byteswap(inplace=True)
        return array_of(self._file.path, self._key, data, self._dtype, shape)

    def _check(self, checksum: int) -> None:
        if (found := masked(checksum)) != (stored := self._entry.checksum):
            first, last = self._entry.offset, self._entry.offset + self._entry.size
            raise damaged(
                self._file.path,
                f"{shown(self._key)} (bytes {first} to {last}) should have the checksum 0x{stored:08x}, but its bytes give "
                f"0x{found:08x}",
            )


def _copy(values: np.ndarray, own: Box, boxes: Sequence[tuple[Box, np.ndarray]]) -> None:
    for box, array in boxes:
        if (both := overlap(own, box)) is not None:
            array[within(both, box)] = values[within(both, own)]
