"""Arrow's columns as columns of NumPy: without copies where both lay out their memory alike."""

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ....errors import ConfigurationError, DatasetError, ElementError
from ...graph._blocks import Block, Column, Dense
from ...graph._structure import STRING, TensorSpec, flatten
from ._lists import Lists
from ._plain_arrays import declared_shape, is_list, is_text, joined, plain, stored, structs_in_list, taken_rows


def import_pyarrow(method: str, module: str = "pyarrow") -> Any:
    """Import a module of PyArrow for ``method``.

    Raises:
        ConfigurationError: If it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{method} reads with PyArrow, which cannot be imported ({error}). Run: pip install 'replicant-jax[columns]'."
        ) from error


@dataclasses.dataclass(frozen=True)
class Columns:
    """Converts tables of Arrow for the dataset ``method``.

    Args:
        method: The public name of the dataset.
        fill_null: What stands for a missing value: one value for each column by its name. Other columns must have none.
    """

    method: str
    fill_null: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    advice_to_choose = "Name at least one in `columns`, or give None for all."

    def advice_to_leave_out(self, name: str) -> str:
        """Say how to leave out a column."""
        del name
        return "name the others in `columns`"

    def advice_to_fill(self, column: str, value: Any) -> str:
        """Say how to give a column a value for those that are missing."""
        return f"fill_null={{{column!r}: {value!r}}}"

    def advice_to_skip(self, column: str) -> str:
        """Say how to leave out rows that lack a column."""
        del column
        return 'on_error="skip"'

    def spec(self, schema: Any) -> Any:
        """Return the spec of a row.

        Raises:
            DatasetError: If there is no column, or a column has a type that NumPy arrays cannot hold.
        """
        if not len(schema):
            raise DatasetError(f"{self.method}: there is no column to read. {self.advice_to_choose}")
        return {field.name: self._spec_of(field.type, field.name) for field in schema}

    def _spec_of(self, kind: Any, name: str) -> Any:
        import pyarrow as pa

        if pa.types.is_struct(stored(kind)):
            return {field.name: self._spec_of(field.type, f"{name}.{field.name}") for field in stored(kind)}
        if (items := structs_in_list(kind)) is not None:
            return {field.name: self._spec_of(pa.large_list(field.type), f"{name}[].{field.name}") for field in items}
        shape, base = self._shape_of(kind, name)
        return TensorSpec(shape, self._dtype_of(base, name))

    def _shape_of(self, kind: Any, name: str) -> tuple[tuple[int | None, ...], Any]:
        import pyarrow as pa

        if isinstance(kind, pa.FixedShapeTensorType):
            if kind.permutation is not None and list(kind.permutation) != sorted(kind.permutation):
                raise self._refused(kind, name, "Write the tensors in row-major order")
            return tuple(kind.shape), kind.value_type
        if (declared := declared_shape(kind)) is not None:
            kind = kind.storage_type
            for _ in declared:
                kind = stored(kind).value_type
            return declared, kind
        kind = stored(kind)
        if is_list(kind):
            shape, base = self._shape_of(kind.value_type, name)
            if None in shape:
                raise self._refused(kind, name, "Lists of lists must have one length inside: write them as fixed-size lists")
            return (None, *shape), base
        if pa.types.is_fixed_size_list(kind):
            shape, base = self._shape_of(kind.value_type, name)
            if None in shape:
                raise self._refused(kind, name, "Lists of lists must have one length inside: write them as fixed-size lists")
            return (kind.list_size, *shape), base
        return (), kind

    def _dtype_of(self, kind: Any, name: str) -> np.dtype:
        import pyarrow as pa

        kind = stored(kind)
        if is_text(kind):
            return STRING
        if pa.types.is_temporal(kind):
            raise self._refused(kind, name, "Dates and times are not numbers: write them as int64")
        if pa.types.is_decimal(kind):
            raise self._refused(kind, name, "Write it as float64 or int64")
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise self._refused(kind, name, "Write it as numbers, texts, lists or structs of them")
        return np.dtype(kind.to_pandas_dtype())

    def complete_rows(self, table: Any) -> Any:
        """Return the rows that have all values, or for whose missing values something stands."""
        from pyarrow import types

        whole = np.ones(table.num_rows, bool)
        for name in table.column_names:
            column = table.column(name)
            if name not in self.fill_null or types.is_nested(stored(column.type)):
                whole &= np.concatenate([_whole(chunk, name in self.fill_null) for chunk in column.chunks] or [whole])
        return table if whole.all() else taken_rows(table, np.flatnonzero(whole))

    def _refused(self, kind: Any, name: str, remedy: str) -> DatasetError:
        return DatasetError(
            f"{self.method}: column {name!r} has the type {kind}, which no array holds. {remedy}, or leave the column out: "
            f"{self.advice_to_leave_out(name)}."
        )

    def block(self, table: Any, spec: Any, where: str) -> Block:
        """Return the rows of a table. ``where`` says where the table comes from, in messages.

        Raises:
            ElementError: If a value is missing, and nothing stands for it.
        """
        columns = {name: self._made(table.column(name), name, name, where) for name in table.column_names}
        leaves, structure = jax.tree_util.tree_flatten(columns, is_leaf=lambda each: isinstance(each, Column))
        assert structure == flatten(spec)[1], "the schema was compared"
        return Block(structure, leaves, table.num_rows)

    def _made(self, array: Any, column: str, name: str, where: str) -> Any:
        """The columns of NumPy of ``array``, which is the part ``name`` of ``column``."""
        import pyarrow as pa

        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks == 1 else joined(array)
        shape = declared_shape(array.type)
        array = self._complete(plain(array), column, name, where)
        if shape is not None and None not in shape:
            return Dense(self._shaped(array, shape, column, name, where))
        if pa.types.is_struct(array.type):
            fields = enumerate(array.type)
            return {field.name: self._made(array.field(i), column, f"{name}.{field.name}", where) for i, field in fields}
        if structs_in_list(array.type) is not None:
            return self._lists_of_fields(array, column, name, where)
        if is_list(array.type):
            ends = array.offsets.to_numpy()
            items = array.values.slice(ends[0], ends[-1] - ends[0])
            values = (
                self._dense(items, column, f"{name}[]", where)
                if shape is None
                else self._shaped(items, shape[1:], column, f"{name}[]", where)
            )
            return Lists(np.arange(len(array)), values, ends.astype(np.int64) - ends[0])
        return Dense(self._dense(array, column, name, where))

    def _lists_of_fields(self, array: Any, column: str, name: str, where: str) -> dict[str, Any]:
        """Of lists of structs, the lists of each field."""
        import pyarrow as pa

        ends = array.offsets.to_numpy().astype(np.int64)
        items = self._complete(plain(array.values.slice(ends[0], ends[-1] - ends[0])), column, f"{name}[]", where)
        fields = zip(items.type, items.flatten(), strict=True)
        lists = {field.name: pa.LargeListArray.from_arrays(pa.array(ends - ends[0]), values) for field, values in fields}
        return {field: self._made(each, column, f"{name}[].{field}", where) for field, each in lists.items()}

    def _shaped(self, array: Any, shape: tuple[int | None, ...], column: str, name: str, where: str) -> np.ndarray:
        """Lists of lists as arrays of a shape that was declared for them.

        Raises:
            ElementError: If a row has another shape.
        """
        count = len(array)
        for axis, size in enumerate(shape):
            array = self._complete(plain(array), column, name, where)
            lengths = array.value_lengths().to_numpy(zero_copy_only=False)
            if len(lengths) and (lengths != size).any():
                wrong = int(lengths[np.flatnonzero(lengths != size)[0]])
                raise ElementError(
                    f"{self.method}: column {name!r} was declared to have the shape {shape}, but in {where}, there are {wrong} "
                    f"values along axis {axis} instead of {size}. Write the column again, with its own shape."
                )
            array = array.flatten()
        return self._dense(array, column, name, where).reshape(count, *shape)

    def _dense(self, array: Any, column: str, name: str, where: str) -> np.ndarray:
        """An array in which all rows have one shape."""
        import pyarrow as pa

        array = self._complete(plain(array), column, name, where)
        if isinstance(array.type, pa.FixedShapeTensorType):
            return self._dense(array.storage, column, name, where).reshape(len(array), *array.type.shape)
        if pa.types.is_fixed_size_list(array.type):
            items = self._dense(array.flatten(), column, f"{name}[]", where)
            return items.reshape(len(array), array.type.list_size, *items.shape[1:])
        return array.to_numpy(zero_copy_only=False)

    def _complete(self, array: Any, column: str, name: str, where: str) -> Any:
        """The array with what stands for the missing values of its column.

        Raises:
            ElementError: If nothing does.
        """
        import pyarrow as pa

        if not array.null_count:
            return array
        fill = self.fill_null.get(column)
        if fill is None or pa.types.is_nested(array.type):
            row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            what = f"item {row}" if name.endswith("[]") else f"row {row}"
            remedy = (
                "Write empty lists and complete structs instead"
                if pa.types.is_nested(array.type)
                else f"Give a value to use instead: {self.advice_to_fill(column, _filler(array.type))}"
            )
            raise ElementError(
                f"{self.method}: column {name!r} has no value (null) in {what} of {where}; {array.null_count} are missing there. "
                f"{remedy}, or leave such rows out: {self.advice_to_skip(column)}."
            )
        refused = f"{self.method}: fill_null gives {fill!r} for column {column!r}, which holds {array.type}: "
        try:
            value = pa.scalar(fill, array.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise ElementError(f"{refused}{error}.") from error
        if pa.types.is_integer(array.type) and value.as_py() != fill:
            raise ElementError(f"{refused}it would become {value}.")
        if pa.types.is_floating(array.type) and np.isinf(value.as_py()) and not np.isinf(fill):
            raise ElementError(f"{refused}it would become {value}.")
        return array.fill_null(value)


def _filler(kind: Any) -> Any:
    """A value of a type, which may stand for missing ones."""
    from pyarrow import types

    if is_text(kind):
        return "" if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) else b""
    return False if types.is_boolean(kind) else 0


def _whole(array: Any, filled: bool) -> np.ndarray:
    """Which rows have all values, also inside of lists and structs. ``filled`` says that something stands for missing numbers."""
    import pyarrow as pa

    array = plain(array)
    if isinstance(array.type, pa.FixedShapeTensorType):
        array = array.storage
    kinds = pa.types
    nested = kinds.is_struct(array.type) or is_list(array.type) or kinds.is_fixed_size_list(array.type)
    whole = array.is_valid().to_numpy(zero_copy_only=False).copy() if nested or not filled else np.ones(len(array), bool)
    if kinds.is_struct(array.type):
        for i in range(array.type.num_fields):
            whole &= _whole(array.field(i), filled)
    elif nested:
        items = _whole(array.flatten(), filled)
        lengths = array.value_lengths().fill_null(0).to_numpy()
        np.logical_and.at(whole, np.repeat(np.arange(len(array)), lengths), items)
    return whole


def differences(found: Any, expected: Any, before: str = "") -> Iterator[str]:
    """Say what differs between two specs of rows: columns that are missing, new, or of another type."""
    for name in sorted({*found, *expected}):
        if name not in found:
            yield f"it has no column {before + name!r}"
        elif name not in expected:
            yield f"it has a column {before + name!r} more"
        elif isinstance(found[name], dict) and isinstance(expected[name], dict):
            yield from differences(found[name], expected[name], f"{before}{name}.")
        elif found[name] != expected[name]:
            yield f"column {before + name!r} is {found[name]} instead of {expected[name]}"
