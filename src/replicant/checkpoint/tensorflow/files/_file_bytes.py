"""Bytes of the files of a checkpoint: ranges of them, read into memory of their own."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...._crc32c import crc32c
from ...folders._locations import is_remote
from ...format._readers import Readers
from ._damage import damaged, reading, require
from ._summed_read import read_summed

_PIECE = 1 << 20  # bytes of a file that are held while a part of a tensor is read
_PIECE_OF_STORE = 32 << 20  # the same of an object, of which several requests at once read


class FileBytes:
    """The bytes of one file, which does not change.

    Args:
        readers: The files of its folder.
        name: Its name in the folder.
    """

    def __init__(self, readers: Readers, name: str):
        self.path = readers.folder / name
        self._readers, self._name = readers, name
        self.piece = _PIECE_OF_STORE if is_remote(readers.folder) else _PIECE

    def size(self) -> int:
        """Return the number of bytes.

        Raises:
            CheckpointError: If the file cannot be opened.
        """
        with reading(self.path), self._readers.opened(self._name, 0) as file:
            return file.seek(0, io.SEEK_END)

    def require_there(self, start: int, size: int, of: str = "") -> None:
        """Check that the file has a range, without reading it. Arguments and errors are those of `read`."""
        with reading(self.path, of), self._opened(start, size, of):
            pass

    def read(self, start: int, size: int, of: str = "") -> np.ndarray:
        """Read a range into memory of its own.

        Args:
            start: The first byte.
            size: How many.
            of: What they are, as ``" of 'key'"``, for messages.

        Raises:
            CheckpointError: If they are not there. No memory is taken before that is known.
        """
        return self.read_summed(start, size, of)[0]

    def read_summed(self, start: int, size: int, of: str = "") -> tuple[np.ndarray, int]:
        """Read a range into memory of its own, as `read`, and return its CRC-32C as well."""
        with reading(self.path, of), self._opened(start, size, of) as file:
            if not is_remote(self.path):
                try:
                    return read_summed(file.fileno(), start, size)
                except EOFError:
                    raise damaged(self.path, f"it has become shorter while the bytes{of} were read") from None
            data = np.empty(size, np.uint8)  # which several requests fill at once
            self._fill(file, data, of)
            return data, crc32c(data)

    def pieces(self, start: int, sizes: Iterator[int], size: int, of: str = "") -> Iterator[np.ndarray]:
        """Yield parts of a range that follow each other. The next one takes the place of the last one in memory.

        Args:
            start: The first byte of the range.
            sizes: How many bytes the parts have.
            size: How many bytes they have together.
            of: As in `read`.

        Raises:
            CheckpointError: As `read`.
        """
        with reading(self.path, of), self._opened(start, size, of) as file:
            room = np.empty(0, np.uint8)
            for each in sizes:
                room = room if len(room) >= each else np.empty(each, np.uint8)
                self._fill(file, room[:each], of)
                yield room[:each]

    @contextmanager
    def _opened(self, start: int, size: int, of: str) -> Iterator[Any]:
        """Provide the open file at the beginning of a range that lies within it."""
        with self._readers.opened(self._name, size) as file:
            end = file.seek(0, io.SEEK_END)
            if not 0 <= start <= start + size <= end:
                raise damaged(self.path, f"the bytes{of} should be {start} to {start + size} of it, but it has {end} bytes")
            file.seek(start)
            yield file

    def _fill(self, file: Any, piece: np.ndarray, of: str) -> None:
        view, done = piece.data, 0
        while done < len(view):
            count = file.readinto(view[done:])
            require(bool(count), self.path, f"it has become shorter while the bytes{of} were read")
            done += count
