"""Files of tables: a file is a sequence of groups of rows, of which one at a time is in memory, or a piece of it."""

import abc
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from ....errors import DatasetError
from ....storage._counts import current_counts
from ....storage._urls import is_url
from ...graph._blocks import Block
from ...graph._graph import UNKNOWN, Node
from .._counts import facts_for_counts, may_count
from .._file_names import FileNames, FileParts
from .._format import Format, NoReader, Reader, check_unchanged, store_fails
from ._numpy_columns import Columns, differences, import_pyarrow


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
    def read(self, group: int, then: int | None = None) -> Any:
        """Return a group as a table of Arrow. ``then`` is the one that is probably read after it."""

    def pieces(self, group: int, then: int | None = None) -> Iterator[tuple[Any, bool]]:
        """Yield a group as tables that follow each other, and whether each is known to be the last one."""
        yield self.read(group, then), True

    @abc.abstractmethod
    def num_bytes(self, group: int) -> int:
        """Return how many bytes of the file are read for a group."""

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
                tables = self.tables(path)
            except DatasetError as error:
                if not self.leaves_out(error):
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
            tables = self.tables(path)
        except DatasetError as error:
            if not self.leaves_out(error):
                raise
            return NoReader(1, position)
        try:
            check_unchanged(self.name, path, identity, tables.identity)
            self._check_spec(path, self.columns.spec(tables.schema), spec)
            return TableReader(self, path, tables, position, spec, part=part)
        except BaseException:
            tables.close()
            raise

    def leaves_out(self, error: DatasetError) -> bool:
        """Whether what has failed is left out. A store that does not answer may answer later, so nothing of it is."""
        return self.skips and not store_fails(error)

    def _check_spec(self, path: str, found: Any, spec: Any) -> None:
        if found != spec:
            raise DatasetError(
                f"{self.name}: {path!r} has other columns than the first file: {'; '.join(differences(found, spec))}. Name columns "
                "that all files have in `columns`, or write the files again with one schema."
            )

    def cardinality(self, node: Node) -> int:
        if not isinstance(node, FileNames) or self.filtered or not may_count(node):
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

    def parts(self, path: str) -> Sequence[int | None]:
        try:
            return range(len(self._counted(path)))
        except DatasetError as error:
            if not self.leaves_out(error):
                raise
            return (None,)  # which counts as one record when it is read

    def num_elements(self, path: str, part: int | None) -> int | None:
        if self.filtered:
            return None
        counts = self._counted(path)
        return sum(counts) if part is None else counts[part]

    def _counted(self, path: str) -> tuple[int, ...]:
        """The number of rows in each group."""
        return _counts(self, path, facts_for_counts(self.name, path, "rows"))


@functools.lru_cache(maxsize=4096)
def _counts(form: TableFormat, path: str, facts: object) -> tuple[int, ...]:
    del facts  # of a file that has changed, the rows are counted again
    tables = form.tables(path)
    try:
        return tuple(tables.rows(group) or 0 for group in range(tables.count))
    finally:
        tables.close()


class TableReader(Reader):
    """Holds one piece of a group. The position is the number of the group, and of the row among those that are kept of it."""

    def __init__(self, form: TableFormat, path: str, tables: Tables, position: Any, spec: Any, *, part: int | None) -> None:
        self.form, self.path, self.tables, self.spec = form, path, tables, spec
        self.counts = current_counts()
        self.group, self.row = position or (part or 0, 0)
        self.stop = tables.count if part is None else part + 1
        if self.stop > tables.count or self.group > self.stop or (self.group == self.stop and self.row):
            raise self._changed()
        self.pieces: Iterator[tuple[Any, bool]] | None = None
        self.block: Block | None = None  # the piece
        self.end = 0  # of the piece, among the rows that are kept of the group
        self.seen = 0  # rows that were read of the group, also those that are left out
        self.left_out = 0  # of this group
        self.is_last = False  # whether the piece is known to be the last one

    def _begin_group(self) -> None:
        self.pieces = self.block = None
        self.end = self.seen = self.left_out = 0
        self.is_last = False

    @property
    def identity(self) -> str:
        return self.tables.identity

    @property
    def position(self) -> Any:
        return [self.group + 1, 0] if self.is_last and self.row == self.end else [self.group, self.row]

    def pull(self, limit: int) -> Block | None:
        while self.group < self.stop:
            if self.block is None or self.row == self.end:
                self.block = None if self.is_last else self._next_piece()
            if self.block is None:
                self._leave()
            elif self.row < self.end:
                begin = self.block.size - (self.end - self.row)
                part = self.block.take(slice(begin, begin + limit))
                self.row += part.size
                return part
        return None

    def _leave(self) -> None:
        self.group, self.row = self.group + 1, 0
        self._begin_group()

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

    def _next_piece(self) -> Block | None:
        """The piece of this group that the next row is in, or None at the end of the group."""
        try:
            return self._piece()
        except BaseException:
            self.num_skipped -= self.left_out
            self._begin_group()  # so that reading again reads this piece again
            raise

    def _piece(self) -> Block | None:
        while not self.is_last:
            before, table = self.seen, self._read()
            self.end += table.num_rows
            if self.end > self.row:
                where = f"{self.tables.kind} {self.group} of {self.path!r}"
                return self.form.columns.block(table, self.spec, f"the rows from {before} on of {where}" if before else where)
        if self.row > self.end:
            raise self._changed()
        return None

    def _read(self) -> Any:
        """The next piece of this group, without the rows that are left out."""
        none = import_pyarrow(self.form.name).Table.from_batches([], schema=self.tables.schema)  # `empty_table` lacks tensors
        if self.pieces is None:
            self.pieces = self.tables.pieces(self.group, self.group + 1 if self.group + 1 < self.stop else None)
        try:
            table, self.is_last = next(self.pieces, (none, True))
            if self.is_last and not is_url(self.path):
                self.counts.add("file_bytes", self.tables.num_bytes(self.group))
        except DatasetError as error:
            if not self.form.leaves_out(error):
                raise
            table, self.is_last = none, True
            self._leave_out((self.tables.rows(self.group) or 1) - self.seen)
        self.seen += table.num_rows
        if not self.form.skips:
            return table
        complete = self.form.columns.complete_rows(table)
        self._leave_out(table.num_rows - complete.num_rows)
        return complete

    def _leave_out(self, count: int) -> None:
        self.left_out += count
        self.num_skipped += count

    def _changed(self) -> DatasetError:
        return DatasetError(
            f"{self.form.name}: the position is in {self.tables.kind} {self.group}, row {self.row} of {self.path!r}, which has "
            f"{self.tables.count} of them now, or fewer rows. The file has changed since the position was saved, or since workers "
            "shared its parts: put it back as it was, or make the dataset again and begin a new pass."
        )

    def close(self) -> None:
        self.tables.close()
