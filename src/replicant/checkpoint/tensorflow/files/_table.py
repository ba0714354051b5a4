"""A table of keys and values in one file, as LevelDB's: blocks of entries in the order of their keys, and an index of the blocks.

The last 48 bytes say where the index is. A block is entries, the places of some of them (restarts), and their number; then 1 byte
for its compression, and the masked CRC-32C of all before. An entry is the number of bytes that its key shares with the one before,
those of the rest of the key and of the value, and the bytes of both.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...._crc32c import crc32c, masked
from ...._protobuf import MessageError, varint
from ._damage import damaged, require, shown
from ._file_bytes import FileBytes
from ._snappy import decompressed

FOOTER = 48
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_TRAILER = 5  # bytes after a block
_WORD = struct.Struct("<I")
_PLAIN, _SNAPPY = 0, 1
_WHOLE = 4 << 20  # bytes of a file that is read at once
_MOST_KEY_BYTES = 64  # for each byte of a block. TensorFlow writes every 16th key in full


class _Handle(NamedTuple):
    """Where a block begins, and how many bytes it has without its trailer."""

    start: int
    size: int


def is_table(file: FileBytes) -> bool:
    """Return whether a file ends as a table does.

    Raises:
        CheckpointError: If it cannot be read.
    """
    size = file.size()
    return size >= FOOTER and file.read(size - len(_MAGIC), len(_MAGIC)).tobytes() == _MAGIC


class Table:
    """A table, of which only the blocks are read that are needed. Keys are bytes, and each is there once.

    Args:
        file: The file.

    Raises:
        CheckpointError: If it cannot be read, or is not a table.
    """

    def __init__(self, file: FileBytes):
        self.path = file.path
        self._file, self._size = file, file.size()
        require(self._size >= FOOTER, self.path, f"it has {self._size} bytes, fewer than the end of a table alone")
        self._all = file.read(0, self._size) if self._size <= _WHOLE else None
        footer = self._bytes(self._size - FOOTER, FOOTER).data
        require(footer[-len(_MAGIC) :] == _MAGIC, self.path, "it does not end with the number that marks the end of a table")
        try:
            _, at = _handle(footer, 0)
            index, _ = _handle(footer, at)
            self._blocks = [(key, _handle(value, 0)[0]) for key, value in self._entries(index)]
        except MessageError as error:
            raise damaged(self.path, f"the index of its blocks cannot be parsed, {error}") from error

    def entries(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yield all keys and values in the order of the keys.

        Raises:
            CheckpointError: If a block is damaged.
        """
        before: bytes | None = None
        for last, handle in self._blocks:
            for key, value in self._entries(handle):
                if before is not None and key <= before:
                    raise damaged(self.path, f"the key {shown(key)} is there twice, or after one that should follow it")
                yield key, value
                before = key
            if before is not None and before > last:
                raise damaged(self.path, f"the key {shown(before)} is in another block than the index of the blocks says")

    def find(self, key: bytes) -> memoryview | None:
        """Return the value of a key, or None. Only its block is read.

        Raises:
            CheckpointError: If the block is damaged.
        """
        handle = next((handle for last, handle in self._blocks if key <= last), None)
        return None if handle is None else next((value for other, value in self._entries(handle) if other == key), None)

    def _entries(self, handle: _Handle) -> Iterator[tuple[bytes, memoryview]]:
        block = self._block(handle)
        try:
            yield from _entries_of(block)
        except MessageError as error:
            raise damaged(self.path, f"the block at byte {handle.start} cannot be parsed, {error}") from error

    def _block(self, handle: _Handle) -> memoryview:
        end = handle.start + handle.size + _TRAILER
        require(
            end <= self._size - FOOTER,
            self.path,
            f"a block should be bytes {handle.start} to {end} of it, but the blocks end at byte {self._size - FOOTER}",
        )
        data = self._bytes(handle.start, handle.size + _TRAILER)
        view = data.data
        stored, found = _WORD.unpack(view[-_WORD.size :])[0], masked(crc32c(data[: -_WORD.size]))
        require(
            stored == found,
            self.path,
            f"the block at byte {handle.start} should have the checksum 0x{stored:08x}, but its bytes give 0x{found:08x}",
        )
        contents, compression = view[: handle.size], view[handle.size]
        require(
            compression in (_PLAIN, _SNAPPY),
            self.path,
            f"the block at byte {handle.start} has the compression {compression}, but there are only 0 (none) and 1 (Snappy)",
        )
        return contents if compression == _PLAIN else memoryview(decompressed(self.path, contents))

    def _bytes(self, start: int, size: int) -> np.ndarray:
        return self._file.read(start, size) if self._all is None else self._all[start : start + size]


def _handle(data: memoryview, at: int) -> tuple[_Handle, int]:
    start, at = varint(data, at)
    size, at = varint(data, at)
    return _Handle(start, size), at


def _entries_of(block: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the keys and values of a block.

    Raises:
        MessageError: If there is something else in it.
    """
    if len(block) < _WORD.size:
        raise MessageError(f"it has {len(block)} bytes")
    (restarts,) = _WORD.unpack(block[-_WORD.size :])
    end = len(block) - _WORD.size * (1 + restarts)
    if end < 0:
        raise MessageError(f"it says that it has {restarts} restarts, but has {len(block)} bytes")
    entries, at, key, room = block[:end], 0, b"", _MOST_KEY_BYTES * len(block)
    while at < end:
        shared, at = varint(entries, at)
        rest, at = varint(entries, at)
        size, at = varint(entries, at)
        room -= shared + rest
        if shared > len(key) or at + rest + size > end or room < 0:
            raise MessageError(f"an entry before byte {at} is longer than what is there")
        key = key[:shared] + bytes(entries[at : at + rest])
        at += rest + size
        yield key, entries[at - size : at]
