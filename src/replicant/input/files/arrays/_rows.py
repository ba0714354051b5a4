"""Rows of numbers at equal distances in a file, which are read without looking at each of them."""

import abc
import dataclasses
import math
from typing import Any

import numpy as np

from ....errors import DatasetError
from ....storage._counts import current_counts
from ....storage._urls import is_url
from ...graph._blocks import Block, Dense
from ...graph._structure import STRING, TensorSpec, flatten
from .._indexed import Facts, Index, OpenFile
from .._limits import too_large
from .._numbered import Numbered, NumberedFormat
from .._url_file import UrlFile, opened

FileBytes = OpenFile | UrlFile
PIECE = 1 << 20  # bytes that are read ahead: fewer, and large batches take noticeably longer than their bytes do
_MOST_AT_ONCE = 1 << 24  # bytes that are read in one piece, if a row has no more
_MOST_CODE, _HALVES = 0x10FFFF, 0xD800  # of Unicode; the 2,048 codes from the second on are halves of characters
_ONE_LEAF = flatten(0)[1]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the rows of a file are.

    Args:
        count: The number of rows.
        begin: The byte at which the first one begins.
        step: The number of bytes from the beginning of a row to that of the next.
        shape: The shape of a row.
        dtype: Its dtype, in the byte order of the file.
    """

    count: int
    begin: int
    step: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def spec(self) -> TensorSpec:
        """The spec of a row."""
        return TensorSpec(self.shape, STRING if self.dtype.kind in "US" else self.dtype)

    def span(self, count: int) -> int:
        """Return the number of bytes from the beginning of a row to the end of the one ``count - 1`` behind it."""
        return (count - 1) * self.step + self.row_bytes

    def rows(self, data: np.ndarray, count: int) -> np.ndarray:
        """Return rows, the bytes of which begin the first.

        Raises:
            ValueError: If a text is none.
        """
        inner = [math.prod(self.shape[axis + 1 :]) * self.dtype.itemsize for axis in range(len(self.shape))]
        return usable_rows(np.ndarray((count, *self.shape), self.dtype, data, 0, (self.step, *inner)))


def usable_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows in one piece, as devices take them: in this machine's byte order, texts as objects.

    Raises:
        ValueError: If a text is none.
    """
    if rows.dtype.kind == "U":
        rows = np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
        codes = rows.view(np.uint32)  # `astype` checks nothing, and may return what is not a text, or end in a SystemError
        if len(wrong := codes[(codes > _MOST_CODE) | (codes & ~np.uint32(0x7FF) == _HALVES)]):
            raise ValueError(f"{wrong[0]:#x} is not a character")
    if rows.dtype.kind in "US":
        return rows.astype(object)
    if rows.dtype == np.bool_:
        return np.ascontiguousarray(rows).view(np.uint8) != 0  # any other byte would be neither true nor false
    return np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))


class RowsFormat(NumberedFormat):
    """The format of files that consist of rows."""

    @property
    @abc.abstractmethod
    def most_row_bytes(self) -> int:
        """The most bytes that a row may have."""

    @abc.abstractmethod
    def layout(self, file: FileBytes) -> Layout:
        """Return where the rows of a file are, all of which it has.

        Raises:
            DatasetError: If it is not such a file, or damaged.
        """

    def opened(self, path: str) -> Numbered:
        file = opened(self.name, path)
        try:
            return RowsReader(self, file, self.checked_layout(file))
        except BaseException:
            file.close()
            raise

    def checked_layout(self, file: FileBytes) -> Layout:
        """Return where the rows of a file are.

        Raises:
            DatasetError: If it is not such a file, or damaged, or its rows have too many bytes.
        """
        layout = self.layout(file)
        if layout.count and layout.row_bytes > self.most_row_bytes:
            raise too_large(self.name, file.path, layout.begin, self.most_row_bytes, size=layout.row_bytes, what="row")
        return layout

    def no_text(self, path: str, start: int, error: ValueError) -> DatasetError:
        """Return the error of rows that are not texts."""
        return DatasetError(
            f"{self.name}: the rows from {start} on of {path!r} are not texts: {error}. Copy or write the file again."
        )

    def has_index(self, path: str) -> bool:
        return not self.skips and not is_url(path)

    def index(self, path: str) -> Index:
        return RowsIndex(self, path)


def identity_of(layout: Layout, file: Any) -> str:
    """Return a text that is another one once the rows of a file are."""
    return f"{layout.count} rows of {layout.dtype}{list(layout.shape)}{f', {file.identity}' if file.identity else ''}"


class RowsReader(Numbered):
    """Reads rows in pieces. A piece is never written to again, so what was given of it stays."""

    def __init__(self, form: RowsFormat, file: FileBytes, layout: Layout) -> None:
        self.form, self.file, self.path, self.layout = form, file, file.path, layout
        self.spec, self.size = layout.spec, layout.count
        self.counts = current_counts()
        self.first, self.held = 0, np.empty(0, np.uint8)  # the number of the first row in the piece, and the piece

    @property
    def identity(self) -> str:
        return identity_of(self.layout, self.file)

    def run(self, start: int, stop: int) -> Block:
        if not self.first <= start < self.first + len(self.held):
            self._read(start, stop)
        rows = self.held[start - self.first : stop - self.first]
        return Block(_ONE_LEAF, [Dense(rows)], len(rows))

    def _read(self, start: int, stop: int) -> None:
        step = self.layout.step or 1
        ahead, most = start + PIECE // step, start + max(1, _MOST_AT_ONCE // step)
        count = min(max(stop, ahead), most, self.size) - start
        self.held = self.held[:0].copy()  # whose memory is taken once more, if nobody else has it
        data = np.empty(self.layout.span(count), np.uint8)
        self.file.fill(data, self.layout.begin + start * self.layout.step)
        if isinstance(self.file, OpenFile):
            self.counts.add("file_bytes", len(data))
        try:
            self.held = self.layout.rows(data, count)
        except ValueError as error:
            raise self.form.no_text(self.path, start, error) from error
        self.first = start

    def close(self) -> None:
        self.file.close()


class RowsIndex(Index):
    """The rows of a file on this machine."""

    def __init__(self, form: RowsFormat, path: str) -> None:
        self.form, self.path = form, path
        with OpenFile(form.name, path) as file:
            self.layout = form.checked_layout(file)
            self.facts: Facts = file.facts
            self._identity = identity_of(self.layout, file)
        self.spec = self.layout.spec

    @property
    def size(self) -> int:
        return self.layout.count

    @property
    def identity(self) -> str:
        return self._identity

    def read(self, numbers: np.ndarray) -> list[Any]:
        return [*self.block(numbers).elements()]

    def block(self, numbers: np.ndarray) -> Block:
        begin, step, size = self.layout.begin, self.layout.step, self.layout.row_bytes
        data = np.empty((len(numbers), size), np.uint8)
        with OpenFile(self.form.name, self.path, self.facts) as file:
            for row, number in zip(data, numbers.tolist(), strict=True):
                file.fill(row, begin + number * step)
        current_counts().add("file_bytes", data.size)
        found = dataclasses.replace(self.layout, step=size)
        try:
            rows = found.rows(data, len(numbers))
        except ValueError as error:
            raise self.form.no_text(self.path, int(numbers.min()), error) from error
        return Block(_ONE_LEAF, [Dense(rows)], len(rows))
