"""The bytes of a file that Zstandard has compressed."""

import importlib
from typing import Any

from ...errors import ConfigurationError
from ._stream import FileStream

_MAGIC, _SKIPPED = 0xFD2FB528, 0x184D2A50  # of a frame, and of one that holds no data (its last four bits are free)
_HEAD = 5  # bytes of a frame that say how long its header is
_SIZES_OF_CONTENT, _SIZES_OF_DICTIONARY = (0, 2, 4, 8), (0, 1, 2, 4)
_REPEATED = 1  # the type of a block that holds one byte, and says how often it comes


def import_zstandard(method: str) -> Any:
    """Import zstandard for ``method``.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        return importlib.import_module("zstandard")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{method} reads .zst files with zstandard, which cannot be imported ({error}). Run: pip install 'replicant-jax[zstd]'."
        ) from error


class ZstdStream(FileStream):
    """Reads one file from beginning to end. It may consist of several frames.

    A frame consists of blocks, each of which holds 128 KiB at most. The library gets one at a time, because it returns all that
    its input holds: 64 KiB can hold gigabytes.
    """

    def __init__(self, method: str, path: str) -> None:
        self.zstandard = import_zstandard(method)
        super().__init__(method, path, "")
        self.compression = "ZSTD"
        self.given, self.rest, self.made = 0, memoryview(b""), b""  # not decompressed yet, and not asked for yet
        self.frame: Any = None
        self.blocks = _Blocks()

    def _inflated(self, at_most: int) -> bytes:
        while self.given >= len(self.made):
            size = self.blocks.next_size(self.rest)
            while size is None or size > len(self.rest):
                more = self._compressed()
                if not more:
                    if not self.rest and self.frame is None:
                        return b""
                    if size is None and self.frame is None:
                        break  # what follows the last frame is none
                    raise self._damaged("it ends in the middle of the compressed data")
                self.rest = memoryview(b"".join((self.rest, more)))
                size = self.blocks.next_size(self.rest)
            self._decompress(len(self.rest) if size is None else size)
        piece, self.given = self.made[self.given : self.given + at_most], self.given + at_most
        return piece

    def _decompress(self, size: int) -> None:
        part, self.rest = self.rest[:size], self.rest[size:]
        self.frame = self.frame or self.zstandard.ZstdDecompressor().decompressobj()
        try:
            self.given, self.made = 0, self.frame.decompress(part)
        except self.zstandard.ZstdError as error:
            raise self._damaged(str(error)) from error
        self.blocks.take(size)
        if self.frame.eof:
            self.frame = None


class _Blocks:
    """Where the parts of frames end: headers, blocks and checksums, as RFC 8878 lays them out."""

    def __init__(self) -> None:
        self.within = self.has_checksum = False  # a frame
        self.skipped = 0  # bytes of a frame without data that are still to come
        self._next = False, False, 0

    def take(self, size: int) -> None:
        """Go to the next part, behind this one."""
        if self.skipped:
            self.skipped -= size
        else:
            self.within, self.has_checksum, self.skipped = self._next

    def next_size(self, data: memoryview) -> int | None:
        """Return the size of the part that begins here, which may be more than there is; None if that is not known yet."""
        if self.skipped:
            return min(self.skipped, max(len(data), 1))
        return self._of_block(data) if self.within else self._of_header(data)

    def _of_header(self, data: memoryview) -> int | None:
        if len(data) < _HEAD:
            return None
        magic = int.from_bytes(data[:4], "little")
        self._next = False, False, 0
        if magic & ~0xF == _SKIPPED:
            self._next = False, False, int.from_bytes(data[4:8], "little")
            return 8
        if magic != _MAGIC:
            return _HEAD  # which the library refuses
        flags = data[4]
        single = flags >> 5 & 1
        self._next = True, bool(flags >> 2 & 1), 0
        content = _SIZES_OF_CONTENT[flags >> 6] or single
        return _HEAD + (1 - single) + _SIZES_OF_DICTIONARY[flags & 3] + content

    def _of_block(self, data: memoryview) -> int | None:
        if len(data) < 3:
            return None
        head = int.from_bytes(data[:3], "little")
        last, kind = head & 1, head >> 1 & 3
        self._next = (False, False, 0) if last else (True, self.has_checksum, 0)
        return 3 + (1 if kind == _REPEATED else head >> 3) + (4 if last and self.has_checksum else 0)
