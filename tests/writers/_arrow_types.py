"""Columns of each type of Arrow, with what is expected of them, and the values that PyArrow reads as Replicant is to give them."""

import datetime as dt
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np

NUM_ROWS = 7
TIMES = "Dates and times are not numbers: write them as int64"
DECIMALS = "Write it as float64 or int64"
OTHERS = "Write it as numbers, texts, lists or structs of them"
RAGGED = "Lists of lists must have one length inside: write them as fixed-size lists"

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TEXTS = ["a", "", "ä€😀", "b\0c", "a", '"', "\n"]
LISTS = [[1, 2], [], [3], [4, 5, 6], [], [7], [8]]


def columns() -> dict[str, tuple[Callable[[], Any], str | None]]:
    """Return, by the name of a type, what makes a column of `NUM_ROWS` values of it, and the words with which it is refused."""
    found: dict[str, tuple[Callable[[], Any], str | None]] = {}
    for name in INTEGERS:
        found[name] = (lambda name=name: _array(_integers(name), name)), None
    for name in ("float16", "float32", "float64"):
        found[name] = (lambda name=name: _array([0.5, -0.0, np.nan, np.inf, -np.inf, 1.5, 2.0], name)), None
    found["bool"] = (lambda: _array([True, False, True, True, False, False, True], "bool_")), None
    for name in ("string", "large_string", "string_view"):
        found[name] = (lambda name=name: _array(TEXTS, name)), None
    for name in ("binary", "large_binary", "binary_view"):
        found[name] = (lambda name=name: _array([text.encode() + b"\xff" for text in TEXTS], name)), None
    found["fixed_size_binary"] = (lambda: _array([b"%03d\0" % i for i in range(NUM_ROWS)], "binary", 4)), None
    found |= {name: ((lambda make=make: make(_pa())), words) for name, (make, words) in _MADE.items()}
    found |= {name: ((lambda make=make: make(_pa())), TIMES) for name, make in _TEMPORAL.items()}
    for bits, precision in ((32, 7), (64, 12), (128, 30), (256, 60)):
        kind = f"decimal{bits}"
        found[kind] = (
            (lambda kind=kind, p=precision: _array([decimal.Decimal(i) / 4 for i in range(NUM_ROWS)], kind, p, 2)),
            DECIMALS,
        )
    return found


def _pa() -> Any:
    import pyarrow as pa

    return pa


def _array(values: Any, kind: str, *settings: Any) -> Any:
    return _pa().array(values, getattr(_pa(), kind)(*settings))


def _integers(name: str) -> list[int]:
    limits = np.iinfo(name)
    return [0, 1, limits.max, limits.min, limits.max - 1, 2, 3]


def _tensors(pa: Any) -> Any:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(NUM_ROWS * 6, dtype=np.float32).reshape(NUM_ROWS, 2, 3))


def _transposed(pa: Any) -> Any:
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0])
    return pa.ExtensionArray.from_storage(kind, pa.array([[float(i)] * 6 for i in range(NUM_ROWS)], kind.storage_type))


def _union(pa: Any, make: str) -> Any:
    kinds = pa.array([0] * NUM_ROWS, pa.int8())
    offsets = [] if make == "from_sparse" else [pa.array(range(NUM_ROWS), pa.int32())]
    return getattr(pa.UnionArray, make)(kinds, *offsets, [pa.array(range(NUM_ROWS))])


def _extension(pa: Any, kind: Any, values: list[Any]) -> Any:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


_STRUCTS = [{"x": i, "name": text} for i, text in enumerate(TEXTS)]
_MADE: dict[str, tuple[Callable[[Any], Any], str | None]] = {
    "dictionary of string": (lambda pa: pa.array(TEXTS).dictionary_encode(), None),
    "dictionary of int64": (lambda pa: pa.array([5, 6, 5, 5, 7, 7, 6]).dictionary_encode(), None),
    "dictionary, ordered": (
        lambda pa: pa.array(TEXTS).dictionary_encode().cast(pa.dictionary(pa.int32(), pa.string(), ordered=True)),
        None,
    ),
    "list": (lambda pa: pa.array(LISTS, pa.list_(pa.int32())), None),
    "large_list": (lambda pa: pa.array(LISTS, pa.large_list(pa.float32())), None),
    "list_view": (lambda pa: pa.array(LISTS, pa.list_view(pa.int64())), None),
    "large_list_view": (lambda pa: pa.array(LISTS, pa.large_list_view(pa.int16())), None),
    "list_view, backwards": (
        lambda pa: pa.ListViewArray.from_arrays(
            pa.array([6, 0, 2, 2, 1, 0, 5]), pa.array([2, 3, 0, 1, 4, 1, 1]), pa.array(range(8))
        ),
        None,
    ),
    "list of string": (lambda pa: pa.array([["a"], [], ["b", "c"], ["ä"], [], [""], ["d"]]), None),
    "list of bool": (lambda pa: pa.array([[True], [], [False, True], [True], [], [False], [True]]), None),
    "list of dictionary": (
        lambda pa: pa.array([[str(i) for i in each] for each in LISTS], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        None,
    ),
    "list of list": (lambda pa: pa.array([[[1], [2, 3]], [], [[]], [[4]], [], [], [[5]]]), RAGGED),
    "fixed_size_list": (lambda pa: pa.array([[i, i + 0.5] for i in range(NUM_ROWS)], pa.list_(pa.float32(), 2)), None),
    "fixed_size_list of fixed_size_list": (
        lambda pa: pa.array([[[i, 1], [2, 3], [4, 5]] for i in range(NUM_ROWS)], pa.list_(pa.list_(pa.int8(), 2), 3)),
        None,
    ),
    "list of fixed_size_list": (
        lambda pa: pa.array([[[i, 1]] * (i % 3) for i in range(NUM_ROWS)], pa.list_(pa.list_(pa.int64(), 2))),
        None,
    ),
    "fixed_size_list of list": (lambda pa: pa.array([[[1], [2, 3]]] * NUM_ROWS, pa.list_(pa.list_(pa.int64()), 2)), RAGGED),
    "struct": (lambda pa: pa.array(_STRUCTS), None),
    "struct of struct": (lambda pa: pa.array([{"a": each, "b": 1.5} for each in _STRUCTS]), None),
    "struct of list": (lambda pa: pa.array([{"a": each} for each in LISTS]), None),
    "list of struct": (lambda pa: pa.array([_STRUCTS[: i % 3] for i in range(NUM_ROWS)]), None),
    "list_view of struct": (
        lambda pa: pa.array([_STRUCTS[: i % 3] for i in range(NUM_ROWS)], pa.list_view(pa.array(_STRUCTS).type)),
        None,
    ),
    "map": (lambda pa: pa.array([[("a", 1)], [], [("b", 2)]] + [[]] * 4, pa.map_(pa.string(), pa.int64())), OTHERS),
    "null": (lambda pa: pa.nulls(NUM_ROWS), OTHERS),
    "sparse union": (lambda pa: _union(pa, "from_sparse"), OTHERS),
    "dense union": (lambda pa: _union(pa, "from_dense"), OTHERS),
    "run_end_encoded of int64": (
        lambda pa: pa.RunEndEncodedArray.from_arrays(pa.array([3, 4, 7], pa.int32()), pa.array([5, 6, 7])),
        None,
    ),
    "run_end_encoded of string": (
        lambda pa: pa.RunEndEncodedArray.from_arrays(pa.array([3, 4, 7], pa.int16()), pa.array(["a", "", "b"])),
        None,
    ),
    "month_day_nano_interval": (lambda pa: pa.array([pa.MonthDayNano([1, 2, 3])] * NUM_ROWS), TIMES),
    "fixed_shape_tensor": (_tensors, None),
    "fixed_shape_tensor, permuted": (_transposed, "Write the tensors in row-major order"),
    "uuid": (lambda pa: _extension(pa, pa.uuid(), [b"%016d" % i for i in range(NUM_ROWS)]), None),
    "json": (lambda pa: _extension(pa, pa.json_(), ['{"a": 1}', "[]", "1", '""', "{}", "2", "null"]), None),
    "bool8": (lambda pa: _extension(pa, pa.bool8(), [0, 1, 1, 0, 2, -1, 0]), None),
    "opaque": (lambda pa: _extension(pa, pa.opaque(pa.int32(), "point", "someone"), list(range(NUM_ROWS))), None),
}
_INSTANT = dt.datetime(2026, 11, 30, 1, 2, 3)  # noqa: DTZ001 - without a zone
_TEMPORAL: dict[str, Callable[[Any], Any]] = {
    **{
        f"date{bits}": (lambda pa, bits=bits: pa.array([_INSTANT.date()] * NUM_ROWS, getattr(pa, f"date{bits}")()))
        for bits in (32, 64)
    },
    **{
        f"time32 in {unit}": (lambda pa, unit=unit: pa.array([_INSTANT.time()] * NUM_ROWS, pa.time32(unit))) for unit in ("s", "ms")
    },
    **{
        f"time64 in {unit}": (lambda pa, unit=unit: pa.array([_INSTANT.time()] * NUM_ROWS, pa.time64(unit)))
        for unit in ("us", "ns")
    },
    **{
        f"timestamp in {unit}": (lambda pa, unit=unit: pa.array([_INSTANT] * NUM_ROWS, pa.timestamp(unit)))
        for unit in ("s", "ms", "us", "ns")
    },
    "timestamp with a time zone": lambda pa: pa.array([_INSTANT] * NUM_ROWS, pa.timestamp("us", "UTC")),
    **{
        f"duration in {unit}": (lambda pa, unit=unit: pa.array([dt.timedelta(seconds=3)] * NUM_ROWS, pa.duration(unit)))
        for unit in ("s", "ms", "us", "ns")
    },
}


def values(column: Any) -> list[Any]:
    """Return the values that PyArrow reads, with the dtypes of the column, and lists of structs as structs of lists."""
    if isinstance(column.type, _pa().FixedShapeTensorType):
        return list(column.combine_chunks().to_numpy_ndarray())
    return [_value(each, column.type) for each in column.to_pylist()]


def _value(value: Any, kind: Any) -> Any:
    pa = _pa()
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.Bool8Type):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _value(value, kind.value_type)
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if hasattr(kind, "value_type"):
        if pa.types.is_struct(kind.value_type):
            return {field.name: [_value(each[field.name], field.type) for each in value] for field in kind.value_type}
        return [_value(each, kind.value_type) for each in value]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype()).type(value)
    return value
