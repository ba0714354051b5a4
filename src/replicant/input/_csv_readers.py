"""Datasets of CSV files: `CsvDataset` and `make_csv_dataset`."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, DatasetError, ElementError
from ._arguments import whole
from ._dataset import AUTOTUNE, Dataset
from ._readers import check_buffer, reading
from .files._file_names import matching_files
from .files._limits import checked_limit
from .files._stream import checked_compression
from .files.text._csv import Column, CsvParser, columns, fields, inferred, shown
from .files.text._csv_records import MAX_CSV_RECORD_BYTES, CsvRecords
from .sources._sources import tensors
from .transforms.elements._map import Map

_METHOD = "make_csv_dataset"


class CsvDataset(Dataset):
    """The records of CSV files, each as a tuple of numbers and strings.

    Args:
        filenames: A path or URL, a list of them, or a dataset of them. The files are read in this order.
        record_defaults: For each column that is read, its dtype (``"float32"``, ``np.int64``, ``str`` and the like) if no field may
            be empty, or the value that stands for an empty field.
        compression_type: The compression: None or "" for none, "GZIP" or "ZLIB".
        buffer_size: As in tf.data, but without effect: files are read in large pieces.
        header: Whether to leave out the first record of each file.
        field_delim: The character between fields.
        use_quote_delim: Whether fields in double quotes may contain delimiters, line ends and doubled quotes. If a record of
            several lines does not end, or not within ``max_record_bytes``, the line that it begins in is an error, and the next
            one is read.
        na_value: A text that counts as an empty field.
        select_cols: The numbers of the columns to read, in increasing order; None reads all.
        exclude_cols: The numbers of columns not to read. Give one of the two.
        max_record_bytes: The most bytes that a record may have.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name, or neither a dtype nor a default.
        ElementError: During iteration, if a record does not have these fields. `ignore_errors` leaves it out.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.csv"
    >>> _ = path.write_text("x,name" + chr(10) + "1,a" + chr(10) + ",b" + chr(10))
    >>> list(CsvDataset(path, [0.0, str], header=True))
    [(np.float32(1.0), 'a'), (np.float32(0.0), 'b')]
    """

    def __init__(  # noqa: PLR0917 - the arguments are those of tf.data
        self,
        filenames: Any,
        record_defaults: Sequence[Any],
        compression_type: str | None = None,
        buffer_size: int | None = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Sequence[int] | None = None,
        exclude_cols: Sequence[int] | None = None,
        *,
        max_record_bytes: int = MAX_CSV_RECORD_BYTES,
    ) -> None:
        check_buffer("CsvDataset", buffer_size)
        made = columns("CsvDataset", record_defaults)
        if select_cols is not None and exclude_cols is not None:
            raise ArgumentError("CsvDataset: give either select_cols or exclude_cols, not both.")
        selected = None if select_cols is None else _increasing("select_cols", select_cols)
        if selected is not None and len(selected) != len(made):
            raise ArgumentError(
                f"CsvDataset: record_defaults needs one entry for each of select_cols. Received {len(made)} and {len(selected)}."
            )
        form = _records("CsvDataset", compression_type, bool(header), field_delim, bool(use_quote_delim), max_record_bytes)
        excluded = None if exclude_cols is None else frozenset(_increasing("exclude_cols", exclude_cols))
        parser = _parser(form, columns=made, na_value=na_value, selected=selected, excluded=excluded)
        super().__init__(Map(inputs=(reading(form, filenames, None),), fn=parser))


def make_csv_dataset(  # noqa: PLR0917 - the arguments are those of tf.data
    file_pattern: Any,
    batch_size: int,
    column_names: Sequence[str] | None = None,
    column_defaults: Sequence[Any] | None = None,
    label_name: str | None = None,
    select_columns: Sequence[int | str] | None = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: int | None = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: int | None = None,
    prefetch_buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: str | None = None,
    ignore_errors: bool = False,
    encoding: str = "utf-8",
    *,
    max_record_bytes: int = MAX_CSV_RECORD_BYTES,
) -> Dataset:
    """Return batches of the rows of CSV files: dicts of columns, or pairs of such a dict and the label.

    Args:
        file_pattern: A pattern of file names, as for `list_files`, or a list of patterns.
        batch_size: The number of rows in a batch.
        column_names: The names of all columns; None takes the first record of the files.
        column_defaults: The dtypes or defaults of the columns that are read, as for `CsvDataset`; None infers them from rows.
        label_name: The column that is the label; None for none.
        select_columns: The names or numbers of the columns to read; None reads all.
        field_delim: The character between fields.
        use_quote_delim: Whether fields may be in double quotes.
        na_value: A text that counts as an empty field.
        header: Whether the first record of each file holds names.
        num_epochs: The number of passes; None repeats without end, and drops no row but at the end.
        shuffle: Whether to shuffle the files and the rows.
        shuffle_buffer_size: The buffer size of this shuffle.
        shuffle_seed: Its seed.
        prefetch_buffer_size: The number of batches to read ahead; None means AUTOTUNE.
        num_parallel_reads: The number of files that are read in turn; None means 1.
        sloppy: Permits another order, but the order is always kept.
        num_rows_for_inference: The number of rows to infer dtypes from; None takes all.
        compression_type: The compression: None or "" for none, "GZIP" or "ZLIB".
        ignore_errors: Whether to leave out rows that cannot be read. The iterator's ``num_skipped`` counts them.
        encoding: The encoding, which must be UTF-8.
        max_record_bytes: The most bytes that a row may have.

    Raises:
        ArgumentError: If an argument is not allowed.
        DatasetError: If there are no files, or they are empty or have different columns.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "two.csv"
    >>> _ = path.write_text("x,y" + chr(10) + "1,a" + chr(10) + "2,b" + chr(10))
    >>> next(iter(make_csv_dataset(str(path), batch_size=2, label_name="y", shuffle=False)))
    ({'x': array([1, 2], dtype=int32)}, array(['a', 'b'], dtype=object))
    """
    del sloppy
    if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise ArgumentError(f"{_METHOD}: encoding must be UTF-8. Received: {encoding!r}. Convert the files.")
    if num_rows_for_inference is not None:
        _ = whole(_METHOD, "num_rows_for_inference", num_rows_for_inference, 0)
    names_of_files = matching_files(file_pattern)
    form = _records(_METHOD, compression_type, False, field_delim, bool(use_quote_delim), max_record_bytes)
    first = _First(form, list(names_of_files.tables[0]))
    names = first.names(header) if column_names is None else [*column_names]
    if len({*names}) < len(names):
        raise ArgumentError(f"{_METHOD}: two columns have the same name. The names are {names}. Give others as column_names.")
    selected = None if select_columns is None else _selected(select_columns, names)
    if column_defaults is None:
        defaults = first.columns(len(names), selected, na_value, bool(header), num_rows_for_inference, ignore_errors)
    else:
        defaults = columns(_METHOD, column_defaults)
    kept = names if selected is None else [names[i] for i in selected]
    if len(defaults) != len(kept):
        raise ArgumentError(f"{_METHOD}: column_defaults needs one entry per column. Received {len(defaults)} for {kept}.")
    if label_name is not None and label_name not in kept:
        raise ArgumentError(f"{_METHOD}: label_name must be one of the columns {kept}. Received: {label_name!r}.")
    parser = _parser(form, columns=defaults, na_value=na_value, selected=selected)
    rows = _rows(dataclasses.replace(form, header=bool(header)), parser, ignore_errors)
    files = Dataset(names_of_files)
    if shuffle:
        files = files.shuffle(len(files), shuffle_seed)
    if num_parallel_reads == AUTOTUNE or (num_parallel_reads or 1) > 1:
        dataset = files.interleave(rows, cycle_length=num_parallel_reads, num_parallel_calls=num_parallel_reads)
    else:
        dataset = files.flat_map(rows)
    if shuffle:
        dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed)
    if num_epochs != 1:
        dataset = dataset.repeat(num_epochs)
    dataset = dataset.batch(batch_size, drop_remainder=num_epochs is None).map(_named(tuple(kept), label_name))
    return dataset.prefetch(AUTOTUNE if prefetch_buffer_size is None else prefetch_buffer_size)


def _rows(form: CsvRecords, parser: CsvParser, ignore_errors: bool) -> Callable[[str], Dataset]:
    def rows(name: str) -> Dataset:
        dataset = Dataset(Map(inputs=(reading(form, Dataset(tensors(name)), None),), fn=parser))
        return dataset.ignore_errors() if ignore_errors else dataset

    rows.__qualname__ = "CsvDataset"  # the name in the pipeline's description
    return rows


def _named(names: tuple[str, ...], label: str | None) -> Callable[..., Any]:
    def named(*values: Any) -> Any:
        features = dict(zip(names, values, strict=True))
        return features if label is None else (features, features.pop(label))

    named.__qualname__ = f"columns {names}" if label is None else f"columns {names}, label {label!r}"
    return named


class _First:
    """The first records of files, from which names and dtypes are taken."""

    def __init__(self, form: CsvRecords, files: list[str]) -> None:
        self.form, self.files = form, files

    def records(self, file: str, header: bool, ignore_errors: bool) -> Iterator[list[str]]:
        """Yield the fields of each record of a file, without those of its header.

        Raises:
            ElementError: If quotes stand where they may not, unless such records are left out.
        """
        form = dataclasses.replace(self.form, header=header)
        for record in Dataset(reading(form, file, None)):
            try:
                yield fields(record, form.delimiter, form.quotes, form.max_record_bytes)
            except ElementError as error:
                if not ignore_errors:
                    raise ElementError(f"{_METHOD}: in {file!r}, {error}. The record is: {shown(record)}.") from None

    def names(self, header: bool) -> list[str]:
        """Return the names in the first record.

        Raises:
            ArgumentError: If there is no header.
            DatasetError: If a file is empty, or files have different names.
            ElementError: If the quotes of the names stand where they may not.
        """
        if not header:
            raise ArgumentError(f"{_METHOD}: without a header, column_names must name the columns.")
        first: list[str] | None = None
        for file in self.files:
            found = next(self.records(file, header=False, ignore_errors=False), None)
            if found is None:
                raise DatasetError(f"{_METHOD}: {file!r} is empty, and has no header.")
            if first is not None and found != first:
                raise DatasetError(f"{_METHOD}: {file!r} has the columns {found}, but {self.files[0]!r} has {first}.")
            first = found
        assert first is not None
        return first

    def columns(  # noqa: PLR0917 - they are the settings of the rows
        self,
        count: int,
        selected: tuple[int, ...] | None,
        na_value: str,
        header: bool,
        num_rows: int | None,
        ignore_errors: bool,
    ) -> tuple[Column, ...]:
        """Return the columns that hold the first rows.

        Raises:
            DatasetError: If a row has another number of fields, unless such rows are left out.
        """
        all_rows = itertools.chain.from_iterable(self.records(file, header, ignore_errors) for file in self.files)
        if ignore_errors:
            all_rows = (row for row in all_rows if len(row) == count)
        rows = list(itertools.islice(all_rows, num_rows))
        for number, row in enumerate(rows):
            if len(row) != count:
                raise DatasetError(
                    f"{_METHOD}: row {number} has {len(row)} fields, but there are {count} columns, so dtypes cannot be inferred. "
                    "Give column_defaults, or leave such rows out: ignore_errors=True."
                )
        chosen = range(count) if selected is None else selected
        return tuple(inferred([row[i] for row in rows], na_value) for i in chosen)


def _selected(columns_: Sequence[int | str], names: list[str]) -> tuple[int, ...]:
    numbers: list[int] = []
    number_of = {name: i for i, name in enumerate(names)}
    if not len(columns_):
        raise ArgumentError(f"{_METHOD}: select_columns must name at least one of the columns {names}. None reads all.")
    for each in columns_:
        if isinstance(each, str) and each in number_of:
            numbers.append(number_of[each])
        elif isinstance(each, int | np.integer) and 0 <= each < len(names):
            numbers.append(int(each))
        else:
            raise ArgumentError(f"{_METHOD}: select_columns must be names or numbers of the columns {names}. Received: {each!r}.")
    if len({*numbers}) < len(numbers):
        raise ArgumentError(f"{_METHOD}: select_columns names a column twice. Received: {[*columns_]}.")
    return tuple(sorted(numbers))


def _increasing(name: str, values: Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(whole("CsvDataset", f"each of {name}", value, 0) for value in values)
    if any(b <= a for a, b in itertools.pairwise(numbers)):
        raise ArgumentError(f"CsvDataset: {name} must be column numbers that grow. Received: {list(numbers)}.")
    return numbers


def _records(  # noqa: PLR0917 - they are the settings of the records
    method: str, compression_type: str | None, header: bool, delimiter: str, quotes: bool, max_record_bytes: int
) -> CsvRecords:
    if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter in ("\r", "\n") or (quotes and delimiter == '"'):
        raise ArgumentError(
            f"{method}: field_delim must be one character, no line end, and no double quote unless use_quote_delim=False. "
            f"Received: {delimiter!r}."
        )
    return CsvRecords(
        compression=checked_compression(method, compression_type),
        header=header,
        quotes=quotes,
        delimiter=delimiter,
        max_record_bytes=checked_limit(method, max_record_bytes),
    )


def _parser(form: CsvRecords, **settings: Any) -> CsvParser:
    return CsvParser(delimiter=form.delimiter, quotes=form.quotes, max_record_bytes=form.max_record_bytes, **settings)
