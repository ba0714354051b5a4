"""Parquet files, read by row groups."""

import dataclasses
import hashlib
import pickle
from typing import Any

from ...errors import DatasetError
from ._columns import import_pyarrow
from ._tables import TableFormat, Tables


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
        try:
            self.opened = arrow.OSFile(path)  # one file, even if another one takes its name
            self.file = parquet.ParquetFile(self.opened, page_checksum_verification=True)
        except self.errors as error:
            raise DatasetError(f"{form.name}: cannot read {path!r}: {one_line(error)}. {remedy(error)}") from error
        self.fragment: Any = None
        self.kept: set[int] = set()
        try:
            self.schema = chosen(form.name, repr(path), self.file.schema_arrow, form.names)
            if form.filters is not None:
                self._filter()
        except BaseException:
            self.close()
            raise

    def _filter(self) -> None:
        """Find the row groups that the filter may keep, by their statistics."""
        dataset = import_pyarrow(self.form.name, "pyarrow.dataset")
        try:
            form = dataset.ParquetFileFormat(
                default_fragment_scan_options=dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
            )
            self.fragment = form.make_fragment(self.opened)
            kept = self.fragment.split_by_row_group(self.form.filters)
        except self.errors as error:
            raise DatasetError(
                f"{self.form.name}: {self.path!r} cannot be filtered by {self.form.filters}: {one_line(error)}. Its columns are "
                f"{self.file.schema_arrow.names}."
            ) from error
        self.kept = {part.row_groups[0].id for part in kept}

    @property
    def identity(self) -> str:
        groups = [self.file.metadata.row_group(i) for i in range(self.count)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups]
        digest = hashlib.blake2b(repr(sizes).encode(), digest_size=8).hexdigest()
        return f"{super().identity} of {sum(rows for rows, _ in sizes)} rows, {digest}"

    @property
    def count(self) -> int:
        return self.file.num_row_groups

    def rows(self, group: int) -> int | None:
        return self.file.metadata.row_group(group).num_rows

    def read(self, group: int) -> Any:
        names = self.schema.names
        if self.fragment is not None and group not in self.kept:
            return import_pyarrow(self.form.name).Table.from_batches([], schema=self.schema)  # `empty_table` lacks tensors
        try:
            if self.fragment is None:
                table = self.file.read_row_group(group, columns=names)
                return table.select(names)  # a name with a dot may also name a part of a struct
            return self.fragment.subset(row_group_ids=[group]).to_table(columns=names, filter=self.form.filters)
        except self.errors as error:
            raise DatasetError(
                f"{self.form.name}: cannot read row group {group} of {self.path!r}, which begins at byte {self._begin(group)}: "
                f"{one_line(error)}. {remedy(error)}"
            ) from error

    def _begin(self, group: int) -> int:
        first = self.file.metadata.row_group(group).column(0)
        return first.dictionary_page_offset or first.data_page_offset

    def close(self) -> None:
        self.file.close()
        self.opened.close()


def chosen(method: str, where: str, schema: Any, names: tuple[str, ...] | None) -> Any:
    """Return the schema of the columns that are read.

    Raises:
        DatasetError: If there is no such column.
    """
    if names is None:
        return schema
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise DatasetError(f"{method}: {where} has no column {missing[0]!r}. Its columns are {schema.names}.")
    return import_pyarrow(method).schema([schema.field(name) for name in names])


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split()).removesuffix(".")


def remedy(error: BaseException) -> str:
    """Return what to do about a file that cannot be read."""
    return "Check the path" if isinstance(error, FileNotFoundError) else "Copy or write the file again"
