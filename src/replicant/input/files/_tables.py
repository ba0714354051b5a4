"""Files of tables: a file is a sequence of groups of rows, of which one at a time is in memory."""

import abc
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

from ...errors import ArgumentError, DatasetError
from ...storage._urls import is_url
from ..graph._blocks import Block
from ..graph._graph import UNKNOWN, Node
from ._columns import Columns, differences, import_pyarrow
from ._files import FileNames, FileParts, Format, Reader, check_unchanged

_MOST_COUNTED = 256  # files whose rows are counted before they are read


class Tables(abc.ABC):
    """One open file."""

    schema: Any  # Arrow's, of the columns that are read
    kind, kinds = "row group", "row groups"  # what the format calls groups

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """The number of groups."""

    @property
    def identity(self) -> str:
        """A text that is another one once the groups of the file are."""
        return f"{self.count} {self.kind if self.count == 1 else self.kinds}"

    @abc.abstractmethod
    def rows(self, group: int) -> int | None:
        """Return the number of rows of a group; None if it is known only when the group was read."""

    @abc.abstractmethod
    def read(self, group: int) -> Any:
        """Return a group as a table of Arrow."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the file."""


@dataclasses.dataclass(frozen=True)
class TableFormat(Format):
    """The format of datasets whose elements are rows of tables.

    Args:
        columns: Converts the tables.
        names: The columns to read; None reads all.
        skips: Whether to leave out what cannot be read: files, groups, and rows in which a value is missing.
    """

    columns: Columns
    names: tuple[str, ...] | None = None
    skips: bool = False

    @abc.abstractmethod
    def tables(self, path: str) -> Tables:
        """Open a file.

        Raises:
            DatasetError: If it is missing or damaged, or lacks a column.
        """

    @property
    def filtered(self) -> bool:
        """Whether groups may have fewer rows than the file says."""
        return self.skips

    @property
    def name(self) -> str:
        return self.columns.method

    @property
    def label(self) -> str:
        settings = [f"columns={list(self.names)}"] if self.names else []
        settings += [f"fill_null={dict(self.columns.fill_null)}"] if self.columns.fill_null else []
        settings += ['on_error="skip"'] if self.skips else []
        return f"{self.name}({', '.join(settings)})"

    def spec_of(self, paths: Iterator[str]) -> Any:
        failure: DatasetError | None = None
        for path in paths:
            try:
                tables = self.opened(path)
            except DatasetError as error:
                if not self.skips:
                    raise
                failure = failure or error
            else:
                tables.close()
                return self.columns.spec(tables.schema)
        if failure is not None:  # of all files: more likely a wrong name than damage
            raise failure
        return None

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        try:
            tables = self.opened(path)
        except DatasetError:
            if not self.skips:
                raise
            return NoReader(1, position)
        try:
            check_unchanged(self.name, path, identity, tables.identity)
            self._check_spec(path, self.columns.spec(tables.schema), spec)
            return TableReader(self, path, tables, position, spec, part=part)
        except BaseException:
            tables.close()
            raise

    def opened(self, path: str) -> Tables:
        """Open a file.

        Raises:
            ArgumentError: If it is at a URL.
            DatasetError: If it is missing or damaged, or lacks a column.
        """
        if is_url(path):
            raise ArgumentError(
                f"{self.name} reads files on this machine, or on a file system that it mounts. Received: {path!r}. Copy the file "
                "with the store's own tool, or use TarDataset, JsonLinesDataset or TFRecordDataset, which read URLs."
            )
        return self.tables(path)

    def _check_spec(self, path: str, found: Any, spec: Any) -> None:
        if found != spec:
            raise DatasetError(
                f"{self.name}: {path!r} has other columns than the first file: {'; '.join(differences(found, spec))}. Name columns "
                "that all files have in `columns`, or write the files again with one schema."
            )

    def cardinality(self, node: Node) -> int:
        if not isinstance(node, FileNames) or self.filtered or node.size > _MOST_COUNTED:
            return 0 if node.cardinality == 0 else UNKNOWN
        parts = node.tables[1].tolist() if isinstance(node, FileParts) else [None] * node.size
        total = 0
        for path, part in zip(node.tables[0], parts, strict=True):
            counts = self._counted(os.fsdecode(path))
            if part is not None and part >= len(counts):
                return UNKNOWN  # the file has changed, which reading it will say
            total += sum(counts) if part is None else counts[part]
        return total

    def count_parts(self, path: str) -> int:
        return 1 if self.skips else len(self._counted(path))

    def _counted(self, path: str) -> tuple[int, ...]:
        """The number of rows in each group."""
        try:
            found = os.stat(path)  # noqa: PTH116 - names may be anything
        except OSError:
            found = None
        return _counts(self, path, found and (found.st_size, found.st_mtime_ns))


@functools.lru_cache(maxsize=4096)
def _counts(form: TableFormat, path: str, facts: object) -> tuple[int, ...]:
    del facts  # of a file that has changed, the rows are counted again
    tables = form.opened(path)
    try:
        return tuple(tables.rows(group) or 0 for group in range(tables.count))
    finally:
        tables.close()


class TableReader(Reader):
    """Holds one group. The position is the number of the group, and of the row among those that are kept of it."""

    def __init__(self, form: TableFormat, path: str, tables: Tables, position: Any, spec: Any, *, part: int | None) -> None:
        self.form, self.path, self.tables, self.spec = form, path, tables, spec
        self.group, self.row = position or (part or 0, 0)
        self.stop = tables.count if part is None else part + 1
        if self.stop > tables.count or self.group > self.stop or (self.group == self.stop and self.row):
            raise self._changed()
        self.block: Block | None = None

    @property
    def identity(self) -> str:
        return self.tables.identity

    @property
    def position(self) -> Any:
        whole = self.block is not None and self.row == self.block.size
        return [self.group + 1, 0] if whole else [self.group, self.row]

    def pull(self, limit: int) -> Block | None:
        while self.group < self.stop:
            if self.block is None:
                self.block = self._read()
                if self.row > self.block.size:
                    raise self._changed()
            if self.row < self.block.size:
                part = self.block.take(slice(self.row, self.row + limit))
                self.row += part.size
                return part
            self._leave()
        return None

    def _leave(self) -> None:
        self.block = None
        self.group, self.row = self.group + 1, 0

    def skip(self, count: int) -> int:
        left = count
        while left and self.group < self.stop:
            rows = None if self.form.filtered or self.block is not None else self.tables.rows(self.group)
            if rows is None:
                block = self.pull(left)
                left -= 0 if block is None else block.size
            elif self.row > rows:
                raise self._changed()
            elif rows - self.row <= left:
                left -= rows - self.row
                self._leave()
            else:
                self.row += left
                left = 0
        return count - left

    def _read(self) -> Block:
        """The rows of this group, without those that are left out."""
        try:
            table = self.tables.read(self.group)
        except DatasetError:
            if not self.form.skips:
                raise
            self.num_skipped += self.tables.rows(self.group) or 1
            table = import_pyarrow(self.form.name).Table.from_batches([], schema=self.tables.schema)
        if self.form.skips:
            complete = self.form.columns.complete_rows(table)
            self.num_skipped += table.num_rows - complete.num_rows
            table = complete
        where = f"{self.tables.kind} {self.group} of {self.path!r}"
        return self.form.columns.block(table, self.spec, where)

    def _changed(self) -> DatasetError:
        return DatasetError(
            f"{self.form.name}: the position is in {self.tables.kind} {self.group}, row {self.row} of {self.path!r}, which has "
            f"{self.tables.count} of them now, or fewer rows. The file has changed since the position was saved, or since workers "
            "shared its parts: put it back as it was, or make the dataset again and begin a new pass."
        )

    def close(self) -> None:
        self.tables.close()


class NoReader(Reader):
    """Stands for a file that cannot be opened. It counts as one record."""

    def __init__(self, num_skipped: int, position: Any) -> None:
        self.num_skipped, self.begin = num_skipped, position

    @property
    def position(self) -> Any:
        return self.begin

    def pull(self, limit: int) -> Block | None:
        return None

    def close(self) -> None:
        return
