"""Files of NumPy: one array, or an archive of several."""

import dataclasses
import math
from typing import Any

from ....errors import DatasetError
from ....storage._counts import current_counts
from ....storage._urls import is_url
from .._indexed import OpenFile
from .._limits import MAX_RECORD_BYTES, MAX_SHARD_BYTES
from .._numbered import Numbered
from .._remedies import HEAD, if_compressed
from .._url_file import opened
from ._held import HeldReader, arrays_of_archive, check_rows, whole_array
from ._npy import MOST_HEAD, Head, NotArrayError, check_has_rows, read_head
from ._rows import FileBytes, Layout, RowsFormat, RowsReader

_ARCHIVES = (b"PK\x03\x04", b"PK\x05\x06")


@dataclasses.dataclass(frozen=True)
class NumpyFiles(RowsFormat):
    """The format of NumpyDataset. ``names`` are the arrays to read of archives; None reads all."""

    names: tuple[str, ...] | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    max_file_bytes: int = MAX_SHARD_BYTES

    @property
    def name(self) -> str:
        return "NumpyDataset"

    @property
    def settings(self) -> list[str]:
        return [f"columns={list(self.names)}"] if self.names else []

    @property
    def most_row_bytes(self) -> int:
        return self.max_record_bytes

    def opened(self, path: str) -> Numbered:
        file = opened(self.name, path)
        try:
            if file[: len(_ARCHIVES[0])] in _ARCHIVES:
                reader = self._of_archive(file)
            elif not (head := self._head(file)).in_columns:
                return RowsReader(self, file, self.checked_layout(file))
            else:
                reader = self._of_columns(file, head)
        except BaseException:
            file.close()
            raise
        file.close()
        return reader

    def _of_archive(self, file: FileBytes) -> HeldReader:
        arrays, known = arrays_of_archive(self.name, file, self.names, self.max_file_bytes)
        if missing := [name for name in self.names or () if name not in arrays]:
            raise DatasetError(f"{self.name}: there is no array {missing[0]!r} in {file.path!r}. Its arrays are {known}.")
        if not arrays:
            raise DatasetError(f"{self.name}: {file.path!r} has no arrays. Leave it out, or write it again.")
        check_rows(self.name, file.path, arrays)
        return self._held(file, arrays)

    def _of_columns(self, file: FileBytes, head: Head) -> HeldReader:
        if head.num_bytes > self.max_file_bytes:
            raise DatasetError(
                f"{self.name}: {file.path!r} is in Fortran's order, so it has to be in memory as a whole, and has "
                f"{head.num_bytes:,} "
                f"bytes, more than {self.max_file_bytes:,}, the most that max_file_bytes allows. Write it in C's order: "
                "`np.save(path, np.ascontiguousarray(array))`, or give a larger max_file_bytes."
            )
        return self._held(file, whole_array(file, head))

    def _held(self, file: FileBytes, arrays: Any) -> HeldReader:
        if isinstance(file, OpenFile):
            current_counts().add("file_bytes", len(file))
        return HeldReader(self, file, arrays)

    def layout(self, file: FileBytes) -> Layout:
        head = self._head(file)
        row = math.prod(head.shape[1:]) * head.dtype.itemsize
        return Layout(head.shape[0], head.size, row, head.shape[1:], head.dtype)

    def _head(self, file: FileBytes) -> Head:
        try:
            head = read_head(file[:MOST_HEAD])
            check_has_rows(head)
        except NotArrayError as error:
            remedy = if_compressed(file[:HEAD], ()) or "Pass files of np.save or np.savez, or copy or write the file again."
            raise DatasetError(f"{self.name}: {file.path!r} {error}. {remedy}") from error
        if head.size + head.num_bytes != len(file):
            raise DatasetError(
                f"{self.name}: {file.path!r} has {len(file)} bytes, and its head says {head.size + head.num_bytes}: an array "
                f"of shape "
                f"{head.shape} and dtype {head.dtype}. Copy it again, or write one array into each file."
            )
        return head

    def has_index(self, path: str) -> bool:
        """Return whether it is an array whose rows are in one piece. What cannot be read is found out later."""
        if self.skips or is_url(path):
            return False
        try:
            with OpenFile(self.name, path) as file:
                return file[: len(_ARCHIVES[0])] not in _ARCHIVES and not self._head(file).in_columns
        except DatasetError:
            return True
