"""Datasets of columns: `ParquetDataset` and `ArrowDataset`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError
from ._arguments import whole
from ._dataset import Dataset
from ._readers import reading
from .files.columns._arrow import ArrowFiles, table_rows
from .files.columns._numpy_columns import Columns, import_pyarrow
from .files.columns._parquet import Parquet
from .graph._graph import Node
from .transforms.batches._padded import RowBatch

_POLICIES = ("raise", "skip")


class ParquetDataset(Dataset):
    """The rows of Parquet files, each as a dict of its columns.

    Row groups are read one at a time, those of more than 64 MiB in pieces, and only their chosen columns. Numbers keep their
    dtypes, strings are ``str``, binary columns are ``bytes``, structs are dicts, and lists of structs dicts of lists. Fixed-size
    lists are arrays. Other lists are arrays of any length, which ``batch_rows`` and `padded_batch` pad. Positions are exact: a
    file, a row group and a row.

    Args:
        files: A file name, a list of names, or a dataset of names. The files are read in this order.
        columns: The names of the columns to read; None reads all.
        batch_rows: The number of rows in a batch: elements are then dicts of arrays of so many rows, also where row groups and
            files end; the last one may be smaller. Lists are padded with zeros to the longest in the batch. None gives rows.
        filters: The rows to read, as PyArrow takes them: an expression such as ``pyarrow.compute.field("x") > 3``, or a list
            such as ``[("x", ">", 3)]``. Row groups whose statistics exclude them are not read.
        fill_null: A dict of what stands for missing values (nulls), by column. In other columns, a missing value is an error, and
            so is a column that is not read.
        on_error: "raise", or "skip" to leave out what cannot be read: files, row groups, and rows in which a value is missing.
            `DistributedIterator.stats` counts their rows; a file that cannot be opened counts as one.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is not a file name, a name of a column or a filter.
        ConfigurationError: If PyArrow is not installed (``pip install 'replicant-jax[columns]'``).
        DatasetError: During iteration, if a file is missing or damaged, lacks a column, or has other types than the first; the
            message names the file and the row group.
        ElementError: During iteration, if a value is missing.

    >>> import pathlib, tempfile
    >>> import pyarrow, pyarrow.parquet
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "numbers.parquet"
    >>> table = pyarrow.table({"x": [1.0, 2.0, 3.0], "y": [0, 1, 0], "name": ["a", "b", "c"]})
    >>> pyarrow.parquet.write_table(table, path, row_group_size=2)
    >>> next(iter(ParquetDataset(path)))
    {'name': 'a', 'x': np.float64(1.0), 'y': np.int64(0)}
    >>> list(ParquetDataset(path, columns=["x"], batch_rows=2, filters=[("y", "==", 0)]))
    [{'x': array([1., 3.])}]
    """

    def __init__(
        self,
        files: Any,
        columns: Sequence[str] | None = None,
        batch_rows: int | None = None,
        filters: Any = None,
        *,
        fill_null: Mapping[str, Any] | None = None,
        on_error: str = "raise",
    ) -> None:
        method = "ParquetDataset"
        names = column_names(method, columns)
        form = Parquet(
            columns=_converter(method, fill_null, names),
            names=names,
            skips=skips(method, on_error),
            filters=_expression(method, filters),
        )
        super().__init__(_batched(method, reading(form, files, None), batch_rows))


class ArrowDataset(Dataset):
    """The rows of Arrow files or tables, each as a dict of its columns, as `ParquetDataset` gives them.

    Args:
        source: A file name, a list of names or a dataset of names, of Arrow's IPC file format or stream format (Feather 2, too),
            which are read one record batch at a time; or a ``pyarrow.Table`` or ``pyarrow.RecordBatch`` in memory. Numbers of
            tables are not copied, unless they lie in several pieces.
        columns: The names of the columns to read; None reads all.
        batch_rows: The number of rows in a batch, as for `ParquetDataset`; None gives single rows.
        fill_null: A dict of what stands for missing values (nulls), by column, as for `ParquetDataset`.
        on_error: "raise", or "skip", as for `ParquetDataset`. A record batch that cannot be read counts as one record.

    Raises:
        ArgumentError: If an argument is not allowed.
        ArgumentTypeError: If something is neither a table nor a file name, or not the name of a column.
        ConfigurationError: If PyArrow is not installed (``pip install 'replicant-jax[columns]'``).
        DatasetError: During iteration, if a file is missing or damaged, lacks a column, or has other types than the first.
        ElementError: If a value is missing.

    >>> import pyarrow
    >>> table = pyarrow.table({"x": [1.0, 2.0, 3.0], "words": [["a"], [], ["b", "c"]]})
    >>> list(ArrowDataset(table, columns=["x"]))
    [{'x': np.float64(1.0)}, {'x': np.float64(2.0)}, {'x': np.float64(3.0)}]
    >>> next(iter(ArrowDataset(table, batch_rows=3)))["words"].tolist()
    [['a', ''], ['', ''], ['b', 'c']]
    """

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | None = None,
        batch_rows: int | None = None,
        *,
        fill_null: Mapping[str, Any] | None = None,
        on_error: str = "raise",
    ) -> None:
        method = "ArrowDataset"
        names, lenient = column_names(method, columns), skips(method, on_error)
        converter = _converter(method, fill_null, names)
        arrow = import_pyarrow(method)
        if isinstance(source, arrow.RecordBatch):
            source = arrow.Table.from_batches([source])
        if isinstance(source, arrow.Table):
            node: Node = table_rows(converter, names, source, skips=lenient)
        else:
            node = reading(ArrowFiles(converter, names, lenient), source, None)
        super().__init__(_batched(method, node, batch_rows))


def skips(method: str, on_error: Any) -> bool:
    """Return whether records that cannot be read are left out.

    Raises:
        ArgumentError: If the policy is not known.
    """
    if on_error not in _POLICIES:
        raise ArgumentError(f'{method}: on_error must be "raise" or "skip". Received: {on_error!r}.')
    return on_error == "skip"


def column_names(method: str, columns: Any) -> tuple[str, ...] | None:
    """Return the names of columns to read.

    Raises:
        ArgumentTypeError: If something is not a name.
        ArgumentError: If there is none, or one twice.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ArgumentTypeError(f"{method}: columns must be a list of names, or None for all. Received: {columns!r}.")
    names = tuple(columns)
    if not names or len({*names}) < len(names):
        raise ArgumentError(f"{method}: columns must name at least one column, and each once. Received: {list(names)}.")
    return names


def _converter(method: str, fill_null: Mapping[str, Any] | None, names: Sequence[str] | None) -> Columns:
    _ = import_pyarrow(method)
    return Columns(method, fill_values(method, fill_null, names))


def fill_values(method: str, fill_null: Any, names: Sequence[str] | None) -> Mapping[str, Any]:
    """Return what stands for missing values, by column. ``names`` are the columns that are read, or None for all.

    Raises:
        ArgumentTypeError: If it is not a dict.
        ArgumentError: If it names a column that is not read.
    """
    if fill_null is not None and not isinstance(fill_null, Mapping):
        raise ArgumentTypeError(
            f"{method}: fill_null must be a dict of values by column, such as {{'x': 0}}. Received: {fill_null!r}."
        )
    filled = fill_null or {}
    if names is not None and (others := [name for name in filled if name not in names]):
        raise ArgumentError(
            f"{method}: fill_null names {others}, but the columns that are read are {list(names)}. Name them in `columns`, too, or "
            "leave them out of `fill_null`."
        )
    return filled


def _expression(method: str, filters: Any) -> Any:
    """The filter as an expression of Arrow."""
    compute = import_pyarrow(method, "pyarrow.compute")
    if filters is None or isinstance(filters, compute.Expression):
        return filters
    try:
        return import_pyarrow(method, "pyarrow.parquet").filters_to_expression(filters)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"{method}: filters must be a list such as [('x', '>', 3)], or an expression such as pyarrow.compute.field('x') > 3. "
            f"Received: {filters!r}, which PyArrow refuses: {error}."
        ) from error


def _batched(method: str, node: Node, batch_rows: int | None) -> Node:
    """The rows, or batches of them."""
    if batch_rows is None:
        return node
    size = whole(method, "batch_rows", batch_rows, 1)
    return RowBatch(inputs=(node,), sizes=(size,))
