"""The bytes of a file, decompressed, in large pieces."""

import io
import weakref
import zlib
from collections.abc import Callable
from typing import Any

from ..._whole_file import open_regular
from ...errors import ArgumentError, DatasetError
from ...storage._counts import current_counts
from ...storage._read_ahead import RemoteFile
from ...storage._retry import RemoteError
from ...storage._urls import is_url
from ._remedies import if_not_opened

PIECE = 1 << 18  # bytes: large enough for cheap reads, small enough for the cache and many open files
_COMPRESSED_PIECE = 1 << 16

WINDOW_BITS = {"GZIP": 31, "ZLIB": 15}  # as zlib expects them


def checked_compression(method: str, compression_type: str | None) -> str:
    """Return the compression as "", "GZIP" or "ZLIB".

    Raises:
        ArgumentError: If it is another one.
    """
    compression = compression_type or ""
    if compression and compression not in WINDOW_BITS:
        raise ArgumentError(f'{method}: compression_type must be None, "", "GZIP" or "ZLIB". Received: {compression_type!r}.')
    return compression


class FileStream:
    """Reads one file from beginning to end: one on this machine, or one at a URL.

    Raises:
        DatasetError: If the file cannot be opened, or a store does not answer later.
    """

    def __init__(self, method: str, path: str, compression: str) -> None:
        self.method, self.path, self.compression = method, path, compression
        self.failure: DatasetError | None = None  # after what was read last
        self.counts = current_counts()
        try:
            # `close` closes it
            self.file: Any = RemoteFile(path) if is_url(path) else open_regular(path, buffering=0)
        except OSError as error:
            what = f"{method}: cannot open {path!r}: {error.strerror}."
            raise DatasetError(f"{what} {if_not_opened(path, error)}") from error
        self.close = weakref.finalize(self, self.file.close)  # even if an iterator is dropped without `close`
        self.inflate = zlib.decompressobj(WINDOW_BITS[compression]) if compression else None

    def read_into(self, view: memoryview) -> int:
        """Read the next bytes into ``view`` and return their number, which is 0 only at the end.

        Raises:
            DatasetError: If the compressed data is damaged or ends early.
        """
        if not self.compression:
            count = self._answered(self.file.readinto, view) or 0
            self._count(count)
            return count
        return self._filled(view)

    def _filled(self, view: memoryview) -> int:
        """Fill ``view`` with decompressed bytes. What comes before damage is returned; the next call raises."""
        if self.failure is not None:
            raise self.failure
        filled = 0
        try:
            while filled < len(view) and (piece := self._inflated(len(view) - filled)):
                view[filled : filled + len(piece)] = piece
                filled += len(piece)
        except DatasetError as error:
            if not isinstance(error.__cause__, RemoteError):  # a store may answer again
                self.failure = error
            if not filled:
                raise
        return filled

    @property
    def identity(self) -> str | None:
        """A text that is another one once the contents of the file are; None for a file on this machine."""
        return str(self.file.facts) if isinstance(self.file, RemoteFile) else None

    def _compressed(self) -> bytes:
        """The next bytes of the file; none at the end."""
        data = self._answered(self.file.read, _COMPRESSED_PIECE)
        self._count(len(data))
        return data

    def _count(self, num_bytes: int) -> None:
        if not isinstance(self.file, RemoteFile):  # whose store counts what comes from it
            self.counts.add("file_bytes", num_bytes)

    def _answered(self, read: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return read(argument)
        except RemoteError as error:
            raise DatasetError(f"{self.method}: {error}.") from error

    def _inflated(self, at_most: int) -> bytes:
        """The next bytes; none at the end."""
        assert self.inflate is not None
        while True:
            compressed = self.inflate.unconsumed_tail or self.inflate.unused_data or self._compressed()
            if self.inflate.eof and self.compression == "GZIP":
                compressed = self._after_padding(compressed)
            if not compressed:
                if self.inflate.eof:
                    return b""
                raise self._damaged("it ends in the middle of the compressed data")
            if self.inflate.eof:  # a gzip file may have several members
                self.inflate = zlib.decompressobj(WINDOW_BITS[self.compression])
            try:
                data = self.inflate.decompress(compressed, at_most)
            except zlib.error as error:
                raise self._damaged(str(error)) from error
            if data:
                return data

    def _after_padding(self, compressed: bytes) -> bytes:
        """What follows the zeros behind a member of a gzip file, which gzip leaves out, too; nothing at the end."""
        while compressed and not compressed.lstrip(b"\0"):
            compressed = self._compressed()
        return compressed.lstrip(b"\0")

    def skip(self, count: int) -> None:
        """Move ahead by `count` bytes, without reading them unless the file is compressed."""
        if not self.compression:
            missing = count - self.file.seek(0, io.SEEK_END)
            self.file.seek(count)
        else:
            missing = self._missing_after(count)
        self._check_long_enough(count, missing)

    def _missing_after(self, count: int) -> int:
        """Move ahead by `count` decompressed bytes. Return how many of them there are not."""
        while count and (piece := self._inflated(min(count, PIECE))):
            count -= len(piece)
        return count

    def _check_long_enough(self, count: int, missing: int) -> None:
        if missing > 0:
            raise DatasetError(
                f"{self.method}: the position is at byte {count} of {self.path!r}, which has only {count - missing} bytes now. The "
                "file has changed since the position was saved: put it back as it was, or start the pass again."
            )

    def _damaged(self, what: str) -> DatasetError:
        return DatasetError(
            f"{self.method}: {self.path!r} is not a complete {self.compression} file: {what} "
            f"(the last byte read was {self.file.tell()}). Copy or write the file again, or check compression_type."
        )
