"""Formats whose elements are cut out of the bytes of a file, from its beginning to its end."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from ...errors import DatasetError
from ..graph._blocks import Block, Boxed
from . import _stream
from ._format import Format, Reader, check_unchanged
from ._limits import MAX_RECORD_BYTES, too_large
from ._stream import FileStream

_AFTER_RECORD = 1 << 21  # bytes that may have to be seen behind a record to know where it ends
_ONE_LEAF = jax.tree_util.tree_structure(0)

# Elements, where each of them ends, and what is wrong after them.
Cut = tuple[list[Any], Sequence[int] | np.ndarray, DatasetError | None]


@dataclasses.dataclass(frozen=True)
class FileFormat(Format):
    """How elements are cut out of the bytes of a file, from its beginning on."""

    compression: str = ""
    max_record_bytes: int = dataclasses.field(default=MAX_RECORD_BYTES, kw_only=True)
    cuts_all: ClassVar[bool] = False  # whether `split` leaves no whole element of the last data for another call

    @property
    def label(self) -> str:
        return f"{self.name}({self.compression})"

    def stream(self, path: str) -> FileStream:
        """Open a file."""
        return FileStream(self.name, path, self.compression)

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        return FileReader(self, path, position, identity)

    @abc.abstractmethod
    def split(self, path: str, offset: int, data: memoryview, last: bool) -> Cut:
        """Return the whole elements at the beginning of ``data``, where each of them ends, and what is wrong after them.

        ``data`` begins at ``offset`` of the uncompressed file, and ``last`` says that nothing follows it. It is overwritten
        afterwards. Of much data, it returns the first element, and those in the first `PIECE`: a million short lines behind a
        long one would take far more memory than their bytes.
        """


class FileReader(Reader):
    """Reads one file in large pieces. The position is the offset of the next element in the uncompressed file.

    The pieces share one buffer, because allocating new memory for each of them takes longer than filling it. What is looked at
    doubles until it holds an element, so no byte of a long one is looked at more than twice on average, and no more is read than
    the file has, whatever it says about its sizes.

    Raises:
        DatasetError: If the file cannot be opened, or is not the one that ``identity`` names.
    """

    def __init__(self, form: FileFormat, path: str, offset: int, identity: str | None = None) -> None:
        self.form, self.path = form, path
        self.stream = form.stream(path)
        try:
            check_unchanged(form.name, path, identity, self.stream.identity)
            self.stream.skip(offset)
        except DatasetError:
            self.stream.close()
            raise
        self.items = np.empty(0, object)
        self.offsets = np.array([offset])  # of each item, and of the end of the last one
        self.next = 0
        self.buffer = bytearray(_stream.PIECE)
        self.begin, self.filled = 0, 0  # where the bytes after the last item are in the buffer, and how many were read
        self.failure: DatasetError | None = None
        self.all_read = False  # whether nothing follows these bytes
        self.at_end = False  # whether nothing follows the items

    @property
    def identity(self) -> str | None:
        return self.stream.identity

    @property
    def position(self) -> int:
        return int(self.offsets[self.next])

    def pull(self, limit: int) -> Block | None:
        items = self.read(limit)
        return Block(_ONE_LEAF, [Boxed(items)], len(items)) if len(items) else None

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and len(items := self.read(count - skipped)):
            skipped += len(items)
        return skipped

    def read(self, limit: int) -> np.ndarray:
        """Return the next elements, at most `limit`; none at the end.

        Raises:
            DatasetError: If the file is damaged here, or an element has too many bytes.
        """
        while self.next == len(self.items):
            if self.failure is not None:
                raise self.failure
            if self.at_end:
                return self.items[:0]
            self._refill()
        first, self.next = self.next, min(self.next + limit, len(self.items))
        return self.items[first : self.next]

    def _refill(self) -> None:
        offset, size, most = int(self.offsets[-1]), _stream.PIECE, self.form.max_record_bytes
        if self.filled < size:
            self._fill(size, once=True)
        while True:
            last = self.all_read and self.filled <= size
            data = memoryview(self.buffer)[self.begin : self.begin + min(self.filled, size)]
            items, ends, failure = self._split(offset, data, last)
            if len(items) or failure is not None or last:
                break
            if len(data) >= most + _AFTER_RECORD:
                failure = too_large(self.form.name, self.path, offset, most)
                break
            size = min(2 * size, most + _AFTER_RECORD) if len(data) >= size else size
            self._fill(size)
        self._take(offset, items, np.asarray(ends, np.int64), failure)
        if last and (not len(items) or not self.filled or self.form.cuts_all):
            self.at_end = True

    def _take(self, offset: int, items: list[Any], ends: np.ndarray, failure: DatasetError | None) -> None:
        """Make these the next items, up to the first that has too many bytes."""
        most, used = self.form.max_record_bytes, int(ends[-1]) if len(ends) else 0
        if used > most and len(large := np.flatnonzero(np.diff(ends, prepend=0) > most)):
            items, ends = items[: large[0]], ends[: large[0]]
            used = int(ends[-1]) if len(ends) else 0
            failure = too_large(self.form.name, self.path, offset + used, most)
        self.failure = failure
        self.items = np.fromiter(items, object, len(items))
        self.offsets = offset + np.concatenate([[0], ends])
        self.next = 0
        self.begin, self.filled = self.begin + used, self.filled - used

    def _fill(self, size: int, *, once: bool = False) -> None:
        """Read on, until there are ``size`` bytes or the file ends, or ``once``."""
        if self.begin + size > len(self.buffer):
            rest = memoryview(self.buffer)[self.begin : self.begin + self.filled].tobytes()
            if max(size, len(rest)) > len(self.buffer) or len(self.buffer) > 2 * _stream.PIECE >= size + len(rest):
                self.buffer = bytearray(max(size, len(rest)))
            self.begin = 0
            memoryview(self.buffer)[: len(rest)] = rest
        view = memoryview(self.buffer)
        while self.filled < size and not self.all_read:
            count = self.stream.read_into(view[self.begin + self.filled :])
            self.all_read = not count
            self.filled += count
            if once:
                break

    def _split(self, offset: int, data: memoryview, last: bool) -> Cut:
        """The whole elements at the beginning of ``data``, which is at ``offset`` of the uncompressed file."""
        return self.form.split(self.path, offset, data, last)

    def close(self) -> None:
        self.stream.close()
