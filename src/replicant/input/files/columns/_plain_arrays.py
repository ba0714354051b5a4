"""Arrow's arrays in plain layouts: without dictionaries, runs, views of lists and extension types."""

from typing import Any

import numpy as np


def stored(kind: Any) -> Any:
    """Return the type that `plain` gives arrays of a type. Tensors, and lists with a declared shape, keep theirs."""
    import pyarrow as pa

    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    if isinstance(kind, pa.BaseExtensionType):
        return kind if isinstance(kind, pa.FixedShapeTensorType) or declared_shape(kind) is not None else stored(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return stored(kind.value_type)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_field)
    return kind


def plain(array: Any) -> Any:
    """Return the array that one stands for whose type is an extension, or which is a dictionary, runs or views of lists."""
    import pyarrow as pa

    kind = array.type
    if isinstance(kind, pa.Bool8Type):
        return array.storage.cast(pa.bool_())
    if isinstance(array, pa.ExtensionArray):
        return array if isinstance(kind, pa.FixedShapeTensorType) else plain(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _gathered(plain(array.dictionary), array.indices)
    if pa.types.is_run_end_encoded(kind):
        rows = np.arange(array.offset, array.offset + len(array))
        return _gathered(plain(array.values), pa.array(np.searchsorted(array.run_ends.to_numpy(), rows, side="right")))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _in_order(array)
    return array


def _in_order(array: Any) -> Any:
    """Views of lists, which may overlap and lie in any order, as lists one after the other. PyArrow's own `cast` mixes them up."""
    import pyarrow as pa

    null = array.is_null().to_numpy(zero_copy_only=False)
    sizes = np.where(null, 0, array.sizes.to_numpy()).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    items = np.repeat(array.offsets.to_numpy() - ends[:-1], sizes) + np.arange(ends[-1])
    values = _gathered(plain(array.values), pa.array(items))
    return pa.LargeListArray.from_arrays(pa.array(ends), values, mask=pa.array(null))


def _gathered(array: Any, rows: Any) -> Any:
    """These rows of a plain array; a null gives a null."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_string_view(array.type) or kinds.is_binary_view(array.type):  # which `take` does not know
        array = array.cast(pa.large_string() if kinds.is_string_view(array.type) else pa.large_binary())
    try:
        return array.take(rows)
    except pa.ArrowNotImplementedError:  # for structs with such
        return pa.concat_arrays(
            [pa.nulls(1, array.type) if row is None else array.slice(row, 1) for row in rows.to_pylist()] or [array.slice(0, 0)]
        )


def taken_rows(table: Any, rows: np.ndarray) -> Any:
    """Return these rows of a table, in ascending order."""
    import pyarrow as pa

    try:
        return table.take(pa.array(rows))
    except pa.ArrowNotImplementedError:  # for texts and bytes in the layout of views
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        return pa.concat_tables([table.slice(run[0], len(run)) for run in runs if len(run)] or [table.slice(0, 0)])


def joined(array: Any) -> Any:
    """Return the pieces of a column as one array."""
    import pyarrow as pa

    kind = array.type
    if not array.num_chunks and isinstance(kind, pa.BaseExtensionType):  # which `combine_chunks` refuses
        return pa.ExtensionArray.from_storage(kind, pa.array([], kind.storage_type))
    array = array.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def declared_shape(kind: Any) -> tuple[int | None, ...] | None:
    """Return the shape that Hugging Face's features `Array2D` to `Array5D` declare for lists of lists; None for other types."""
    declares = type(kind).__name__ in {f"Array{i}DExtensionType" for i in range(2, 6)}
    return tuple(kind.shape) if declares else None


def structs_in_list(kind: Any) -> Any:
    """Return the type of the structs in a list of them; None for other types."""
    import pyarrow as pa

    kind = stored(kind)
    return stored(kind.value_type) if is_list(kind) and pa.types.is_struct(stored(kind.value_type)) else None


def is_list(kind: Any) -> bool:
    """Return whether a type is one of lists of any length."""
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def is_text(kind: Any) -> bool:
    """Return whether a type is one of texts or bytes."""
    import pyarrow as pa

    kinds = pa.types
    return any(is_kind(kind) for is_kind in (kinds.is_string, kinds.is_large_string, kinds.is_binary, kinds.is_large_binary)) or (
        kinds.is_fixed_size_binary(kind) or kinds.is_string_view(kind) or kinds.is_binary_view(kind)
    )
