"""Files of Arrow's IPC formats, read by record batches, and tables in memory."""

import dataclasses
import hashlib
import struct
from typing import Any

import numpy as np

from ....errors import DatasetError
from ....storage._retry import RemoteError
from ...graph._blocks import Column, Dense
from ...sources._sources import Counted, Rows
from .._remedies import if_not_read
from ._lists import Lists
from ._numpy_columns import Columns, import_pyarrow
from ._parquet import chosen, one_line, remedy
from ._random_access import RandomAccessFile
from ._tables import TableFormat, Tables

_MAGIC = b"ARROW1"
_BLOCK = struct.Struct("<qi4xq")  # where a record batch lies, the bytes of its head, and those of its body


@dataclasses.dataclass(frozen=True)
class ArrowFiles(TableFormat):
    """The format of ArrowDataset."""

    @property
    def filtered(self) -> bool:
        return True  # a record batch says how many rows it has only when it is read

    def tables(self, path: str) -> Tables:
        return IpcTables(self, path)


class IpcTables(Tables):
    """One file of Arrow's file format or stream format. Files are not mapped: one that is cut off would end the process."""

    kind, kinds = "record batch", "record batches"

    def __init__(self, form: ArrowFiles, path: str) -> None:
        self.form, self.path = form, path
        self.arrow, self.ipc = import_pyarrow(form.name), import_pyarrow(form.name, "pyarrow.ipc")
        self.errors = (self.arrow.ArrowException, OSError, EOFError)
        try:
            self.opened = RandomAccessFile(form.name, path, in_order=True)
        except self.errors as error:
            what = f"{form.name}: cannot read {path!r}: {one_line(error)}"
            raise DatasetError(f"{what}. {if_not_read(path, error, remedy(error))}") from error
        self.file = self.opened.arrow
        try:
            self.is_file = self.file.read(len(_MAGIC)) == _MAGIC
            whole = self._reader_with(None).schema
            self.schema = chosen(form.columns, repr(path), whole, form.names)
            fields = None if form.names is None else [whole.get_field_index(name) for name in form.names]
            self._sizes, self._layout = self._counted()
            self.options = self.ipc.IpcReadOptions(included_fields=fields)
            self._begin()
        except self.errors as error:
            self.opened.close()
            what = f"{form.name}: cannot read {path!r}: {one_line(error)}"
            raise DatasetError(f"{what}. {if_not_read(path, error, remedy(error))}") from error
        except BaseException:
            self.opened.close()
            raise

    def _reader_with(self, options: Any) -> Any:
        self.file.seek(0)
        open_ = self.ipc.open_file if self.is_file else self.ipc.open_stream
        return open_(self.file, options=options)

    def _counted(self) -> tuple[list[int], str]:
        """The bytes of each record batch, and a digest of where they lie in the file and how many rows they have."""
        if self.is_file:
            end = self.file.size() - len(_MAGIC) - 4
            self.file.seek(end)
            length = int.from_bytes(self.file.read(4), "little")
            self.file.seek(end - length)
            footer = self.file.read(length)
            return _sizes(footer), _digest([footer])
        self.file.seek(0)
        messages = self.ipc.MessageReader.open_stream(self.file)
        found = [(message.metadata, message.body.size) for message in messages if message.type == "record batch"]
        return [head.size + size for head, size in found], _digest([head.to_pybytes() for head, _ in found])

    @property
    def identity(self) -> str:
        layout = f"{super().identity}, {self._layout}"
        return layout if self.opened.identity is None else f"{layout}, {self.opened.identity}"

    def _begin(self) -> None:
        self.reader, self.next = self._reader_with(self.options), 0

    @property
    def count(self) -> int:
        return len(self._sizes)

    def num_bytes(self, group: int) -> int:
        return self._sizes[group]

    def rows(self, group: int) -> int | None:
        return None

    def read(self, group: int, then: int | None = None) -> Any:
        del then  # a file at a URL is read ahead anyway
        try:
            batch = self.reader.get_batch(group) if self.is_file else self._after_those_before(group)
            batch.validate(full=True)  # offsets that are damaged would end the process
        except (*self.errors, StopIteration) as error:
            raise DatasetError(
                f"{self.form.name}: cannot read record batch {group} of {self.path!r}: {one_line(error) or 'it is cut off'}. "
                f"{remedy(error)}"
            ) from error
        return self.arrow.Table.from_batches([batch]).select(self.schema.names)

    def _after_those_before(self, group: int) -> Any:
        """A record batch of a stream, which can only be read from its beginning."""
        if group < self.next:
            self._begin()
        while True:
            number, self.next = self.next, self.next + 1  # the reader passes a batch even if it cannot decode it
            try:
                batch = self.reader.read_next_batch()
            except self.errors as error:
                if isinstance(error, RemoteError):  # nobody knows how far the reader is: it begins anew
                    self.next = len(self._sizes)
                    raise
                if number == group:
                    raise
            else:
                if number == group:
                    return batch

    def close(self) -> None:
        self.opened.close()


def _sizes(footer: bytes) -> list[int]:
    """The bytes of the record batches of a file, which the vector in the field 3 of the footer's table describes."""
    table = _uint32(footer, 0)
    (to_layout,) = struct.unpack_from("<i", footer, table)
    layout = table - to_layout
    num_fields = struct.unpack_from("<H", footer, layout)[0] // 2 - 2
    field = struct.unpack_from("<H", footer, layout + 4 + 2 * 3)[0] if num_fields > 3 else 0
    if not field:
        return []
    vector = table + field + _uint32(footer, table + field)
    blocks = (_BLOCK.unpack_from(footer, vector + 4 + _BLOCK.size * i) for i in range(_uint32(footer, vector)))
    return [head + body for _, head, body in blocks]


def _uint32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _digest(parts: list[bytes]) -> str:
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


@dataclasses.dataclass(frozen=True, eq=False)
class TableRows(Counted):
    """The rows of a table in memory. For each leaf: its array, or the items of its lists and where each list ends."""

    arrays: tuple[tuple[np.ndarray, ...], ...] = ()
    spec: Any = None

    @property
    def label(self) -> str:
        return f"ArrowDataset({self.size} rows)"

    def columns(self, start: int, stop: int) -> list[Column]:
        refs = np.arange(start, stop)
        return [Dense(each[0][start:stop]) if len(each) == 1 else Lists(refs, *each) for each in self.arrays]


def table_rows(columns: Columns, names: tuple[str, ...] | None, table: Any, *, skips: bool = False) -> Counted:
    """Return a source of the rows of a table, without copying numbers that lie in one piece.

    Raises:
        DatasetError: If a column is missing or has a type that no array holds.
        ElementError: If a value is missing.
    """
    schema = chosen(columns, "the table", table.schema, names)
    spec = columns.spec(schema)
    table = table.select(schema.names)
    block = columns.block(columns.complete_rows(table) if skips else table, spec, "the table")
    if all(isinstance(column, Dense) for column in block.columns):
        return Rows(size=block.size, tables=tuple(column.refs for column in block.columns), spec=spec, name=columns.method)
    arrays = tuple((each.values, each.ends) if isinstance(each, Lists) else (each.refs,) for each in block.columns)
    return TableRows(size=block.size, arrays=arrays, spec=spec)
