"""A file at a URL of which any bytes can be asked for, as `OpenFile` gives those of a file on this machine."""

import io
import weakref
from typing import Any, Self

from ...errors import DatasetError
from ...storage._read_ahead import RemoteFile
from ...storage._retry import RemoteError
from ...storage._urls import is_url
from ._indexed import OpenFile
from ._remedies import if_not_opened


class UrlFile:
    """A file at a URL, with a length, slices, and reading ahead if it is read in order.

    Raises:
        DatasetError: If it cannot be opened.
    """

    def __init__(self, method: str, url: str) -> None:
        self.method, self.path = method, url
        try:
            self._file = RemoteFile(url)
        except OSError as error:
            raise DatasetError(f"{method}: cannot open {url!r}: {error.strerror}. {if_not_opened(url, error)}") from error
        self.close = weakref.finalize(self, self._file.close)  # even if an iterator is dropped

    @property
    def identity(self) -> str:
        """A text that is another one once the contents of the file are."""
        return str(self._file.facts)

    def __len__(self) -> int:
        return self._file.facts.size

    def __getitem__(self, where: slice) -> bytes:
        start, stop, _ = where.indices(len(self))
        data = bytearray(max(0, stop - start))
        self.fill(memoryview(data), start)
        return bytes(data)

    def fill(self, view: Any, start: int) -> None:
        """Read bytes from a place on, until this writable buffer is full.

        Raises:
            DatasetError: If the store does not answer, or the file has changed.
        """
        view = memoryview(view).cast("B")
        filled = 0
        try:
            self._file.seek(start, io.SEEK_SET)
            while filled < len(view) and (count := self._file.readinto(view[filled:])):
                filled += count
        except RemoteError as error:
            raise DatasetError(f"{self.method}: {error}.") from error
        if filled < len(view):
            raise DatasetError(f"{self.method}: {self.path!r} ends at byte {start + filled}, before what is read there.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opened(method: str, path: str) -> OpenFile | UrlFile:
    """Open a file on this machine or at a URL, of which any bytes can be asked for.

    Raises:
        DatasetError: If it cannot be opened.
    """
    return UrlFile(method, path) if is_url(path) else OpenFile(method, path)
