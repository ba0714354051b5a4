"""Parquet files, read by row groups, and large row groups in pieces."""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import io
import pickle
import sys
from collections.abc import Iterator
from typing import Any

from ....errors import DatasetError
from ....storage._retry import RemoteError
from .._remedies import if_not_read
from ._numpy_columns import Columns, import_pyarrow
from ._random_access import RandomAccessFile
from ._tables import TableFormat, Tables

_LARGE = 64 << 20  # bytes of the chosen columns, uncompressed: a row group of more is read in pieces
_LARGE_ROWS = 1 << 20
_BUFFER, _LEAST_BUFFER = 1 << 20, 1 << 16  # bytes that are read of each column at a time, in such a row group: most, least
_READ_AHEAD = 8  # columns: for each, up to 16 MiB of a file at a URL are on their way. Of more columns, nothing is read ahead


@dataclasses.dataclass(frozen=True)
class Parquet(TableFormat):
    """The format of ParquetDataset. ``filters`` is an expression of Arrow, or None."""

    filters: Any = dataclasses.field(default=None, compare=False)

    @property
    def filtered(self) -> bool:
        return super().filtered or self.filters is not None

    @property
    def label(self) -> str:
        label = super().label
        return (
            label
            if self.filters is None
            else f"{label.removesuffix(')')}{'' if label.endswith('()') else ', '}filters={self._shown})"
        )

    @property
    def _shown(self) -> str:
        shown = str(self.filters)  # of a long list of values, Arrow shows the ends
        return f"{shown} {hashlib.blake2b(pickle.dumps(self.filters), digest_size=8).hexdigest()}" if "..." in shown else shown

    def tables(self, path: str) -> Tables:
        return ParquetTables(self, path)


class ParquetTables(Tables):
    """One Parquet file. Only the chunks of the chosen columns are read, and only of row groups that the filter may keep."""

    def __init__(self, form: Parquet, path: str) -> None:
        self.form, self.path = form, path
        arrow, parquet = import_pyarrow(form.name), import_pyarrow(form.name, "pyarrow.parquet")
        self.errors = (arrow.ArrowException, OSError)
        with contextlib.ExitStack() as opened:
            try:
                self.opened = RandomAccessFile(form.name, path, in_order=False)
                opened.callback(self.opened.close)
                self.file = parquet.ParquetFile(self.opened.arrow, page_checksum_verification=True)
            except (*self.errors, UnicodeDecodeError) as error:  # the name of a column may be no text
                what = f"{form.name}: cannot read {path!r}: {one_line(error)}"
                raise DatasetError(f"{what}. {if_not_read(path, error, remedy(error))}") from error
            opened.pop_all()
        self.fragment: Any = None
        self.kept: set[int] = set()
        self._checked: set[int] = set()  # row groups, by `_check_chunks`
        try:
            self.schema = chosen(form.columns, repr(path), self.file.schema_arrow, form.names)
            if self.count:
                self._check_chunks(0)
            if form.filters is not None:
                self._filter()
        except BaseException:
            self.close()
            raise

    def _check_chunks(self, group: int) -> None:
        """Check what the file says about the chunks of these columns in a row group, once, with nothing read but the metadata.

        Asking about a chunk that is encrypted, or whose numbers contradict each other, ends the process; reading one is an error.
        """
        if group in self._checked:
            return
        try:
            with contextlib.suppress(_ReadError):
                self._unread.read_row_group(group, columns=self._looked_at, use_threads=False)
        except self.errors as error:
            if "decrypt" in str(error).lower():
                raise DatasetError(
                    f"{self.form.name}: cannot read the columns {self._looked_at} of {self.path!r}: at least one of them is "
                    f"encrypted ({one_line(error)}). Name columns that are not in `columns`, or decrypt the file."
                ) from error
            raise DatasetError(
                f"{self.form.name}: cannot read row group {group} of {self.path!r}, because what the file says about it is damaged "
                f"({one_line(error)}). {remedy(error)}."
            ) from error
        self._checked.add(group)

    @functools.cached_property
    def _unread(self) -> Any:
        """The file once more, without its bytes."""
        parquet = import_pyarrow(self.form.name, "pyarrow.parquet")
        return parquet.ParquetFile(_Unread(), metadata=self.file.metadata, buffer_size=_LEAST_BUFFER, pre_buffer=False)

    def _filter(self) -> None:
        """Find the row groups that the filter may keep, by their statistics."""
        dataset = import_pyarrow(self.form.name, "pyarrow.dataset")
        try:
            form = dataset.ParquetFileFormat(
                default_fragment_scan_options=dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
            )
            self.fragment = form.make_fragment(self.opened.arrow)
            kept = self.fragment.split_by_row_group(self.form.filters)
        except self.errors as error:
            failed = f"cannot be filtered by {self.form.filters}", f"Its columns are {self.file.schema_arrow.names}"
            if isinstance(error, RemoteError):
                failed = "cannot be read", remedy(error)
            raise DatasetError(f"{self.form.name}: {self.path!r} {failed[0]}: {one_line(error)}. {failed[1]}.") from error
        self.kept = {part.row_groups[0].id for part in kept}

    @property
    def identity(self) -> str:
        groups = [self.file.metadata.row_group(i) for i in range(self.count)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        digest = hashlib.blake2b(repr(sizes).encode(), digest_size=8).hexdigest()
        layout = f"{super().identity} of {sum(rows for rows, _ in sizes)} rows, {digest}"
        return layout if self.opened.identity is None else f"{layout}, {self.opened.identity}"

    @property
    def count(self) -> int:
        return self.file.num_row_groups

    def rows(self, group: int) -> int | None:
        return self.file.metadata.row_group(group).num_rows

    def read(self, group: int, then: int | None = None) -> Any:
        names = self.schema.names
        if self.fragment is not None and group not in self.kept:
            return import_pyarrow(self.form.name).Table.from_batches([], schema=self.schema)  # `empty_table` lacks tensors
        if then is not None and self.fragment is not None and then not in self.kept:
            then = None
        self.opened.announce(self._ranges(group), () if then is None else self._ranges(then))
        with self._reading(group):
            if self.fragment is None:
                table = self.opened.interruptible(lambda: self.file.read_row_group(group, columns=names))
                table = table.select(names)  # a name with a dot may also name a part of a struct
            else:
                kept = self.fragment.subset(row_group_ids=[group])
                table = self.opened.interruptible(lambda: kept.to_table(columns=names, filter=self.form.filters))
            table.validate(full=True)  # texts that are not UTF-8 would fail where nobody knows the file
        return table

    @contextlib.contextmanager
    def _reading(self, group: int) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            raise DatasetError(
                f"{self.form.name}: cannot read row group {group} of {self.path!r}, which begins at byte {self._begin(group)}: "
                f"{one_line(error)}. {remedy(error)}"
            ) from error

    def pieces(self, group: int, then: int | None = None) -> Iterator[tuple[Any, bool]]:
        left_out = self.fragment is not None and group not in self.kept
        if left_out or (size := self._rows_of_piece(group)) is None:
            yield from super().pieces(group, then)
            return
        self.opened.announce(self._ranges(group) if len([*self._chunks(group)]) <= _READ_AHEAD else (), ())
        names, expression, left = self.schema.names, self.form.filters, self.rows(group) or 0
        with self._reading(group):
            batches = self._buffered.iter_batches(size, [group], self._looked_at)
            while (batch := self.opened.interruptible(lambda: next(batches, None))) is not None:
                left -= batch.num_rows
                table = import_pyarrow(self.form.name).Table.from_batches([batch])
                table.validate(full=True)
                yield (table if expression is None else table.filter(expression)).select(names), not left
            if left:  # Arrow does not look at that
                raise OSError(f"its last {left} rows are not there")

    def _rows_of_piece(self, group: int) -> int | None:
        """The number of rows of a large row group that are read at a time; None for others, which are read whole."""
        metadata = self.file.metadata.row_group(group)
        size = sum(chunk.total_uncompressed_size for chunk in self._chunks(group))
        if size <= _LARGE and metadata.num_rows <= _LARGE_ROWS:
            return None
        return max(1, min(_LARGE_ROWS // 8, metadata.num_rows * _LARGE // 4 // max(size, 1)))

    @functools.cached_property
    def _buffered(self) -> Any:
        """The file once more, for large row groups. Of each column, a few pages are in memory."""
        return import_pyarrow(self.form.name, "pyarrow.parquet").ParquetFile(
            self.opened.arrow,
            metadata=self.file.metadata,
            buffer_size=max(_LEAST_BUFFER, min(_BUFFER, _LARGE // len([*self._chunks(0)]))),
            pre_buffer=False,
            page_checksum_verification=True,
        )

    @functools.cached_property
    def _looked_at(self) -> list[str]:
        """The names of the chosen columns, and of those that the filter names or seems to name."""
        filters = "" if self.form.filters is None else str(self.form.filters)
        chosen = {*self.schema.names}
        return [name for name in self.file.schema_arrow.names if name in chosen or name in filters]

    def num_bytes(self, group: int) -> int:
        if self.fragment is not None and group not in self.kept:
            return 0
        return sum(chunk.total_compressed_size for chunk in self._chunks(group))

    def _begin(self, group: int) -> int:
        return min((begin for begin, _ in self._ranges(group)), default=0)

    @functools.cached_property
    def _leaves(self) -> list[int]:
        """The numbers of these columns, or of their parts."""
        schema, names = self.file.schema, {*self._looked_at}
        return [i for i in range(len(schema)) if any(each in names for each in _beginnings(schema.column(i).path))]

    def _chunks(self, group: int) -> Iterator[Any]:
        """What the file says about the chunks of these columns, once that is checked."""
        self._check_chunks(group)
        metadata = self.file.metadata.row_group(group)
        return (metadata.column(i) for i in self._leaves)

    def _ranges(self, group: int) -> Iterator[tuple[int, int]]:
        """Where these chunks are."""
        return ((_begin(chunk), _begin(chunk) + chunk.total_compressed_size) for chunk in self._chunks(group))

    def close(self) -> None:
        self.file.close()
        self.opened.close()


class _ReadError(Exception):
    """Something was read of a file of which nothing can be."""


class _Unread(io.RawIOBase):
    """A file of any length of which only the metadata are known."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return offset

    def tell(self) -> int:
        return sys.maxsize

    def readinto(self, buffer: Any) -> int:
        raise _ReadError


def _beginnings(path: str) -> Iterator[str]:
    """A path of names with dots between them, and what is before each dot: a name may have dots itself."""
    yield path
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _begin(chunk: Any) -> int:
    return chunk.dictionary_page_offset or chunk.data_page_offset


def chosen(columns: Columns, where: str, schema: Any, names: tuple[str, ...] | None) -> Any:
    """Return the schema of the columns that are read.

    Raises:
        DatasetError: If there is no such column or more than one, or none for whose missing values something stands, or a name is
            no text.
    """
    method = columns.method
    try:
        numbers = collections.Counter(schema.names)
    except UnicodeDecodeError as error:
        raise DatasetError(
            f"{method}: {where} is damaged: the name of a column is not UTF-8 ({error}). Write the file again."
        ) from error
    for asked, argument in ((names or (), ""), (columns.fill_null, ", which fill_null names")):
        missing = [name for name in asked if name not in numbers]
        if missing:
            raise DatasetError(f"{method}: {where} has no column {missing[0]!r}{argument}. Its columns are {schema.names}.")
    for name in numbers if names is None else names:
        if numbers[name] > 1:
            raise DatasetError(
                f"{method}: {where} has {numbers[name]} columns with the name {name!r}, of which a row can hold one. Leave the "
                "name out of `columns`, or write the data again with one name for each column."
            )
    return schema if names is None else import_pyarrow(method).schema([schema.field(name) for name in names])


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split()).removesuffix(".")


def remedy(error: BaseException) -> str:
    """Return what to do about a file that cannot be read."""
    if isinstance(error, RemoteError):
        return "Check the URL and the store"
    if isinstance(error, NotImplementedError):
        return "PyArrow cannot read this: write the file again in types, encodings and compressions that it reads"
    return "Check the path" if isinstance(error, FileNotFoundError) else "Copy or write the file again"
