"""Parquet and Arrow files of polars."""

import datetime as dt
import decimal
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _arrow_types import DECIMALS, OTHERS, RAGGED, TIMES
from _cells import Cell, rows

_TEXTS = ["a", "ä", "", "b"]
_WIDE = "PyArrow cannot read this"
_NOW = dt.datetime(2026, 11, 30, 1, 2, 3)  # noqa: DTZ001 - without a zone
_DTYPES = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64")


def _pl() -> Any:
    import polars as pl

    return pl


_COLUMNS: dict[str, Any] = {
    **{name: ((lambda name=name: ([0, 1, 100, 3], getattr(_pl(), name))), None) for name in _DTYPES},
    "Float16": (lambda: ([0.5, 1, 2, 3], _pl().Float16), None),
    "Int128": (lambda: ([0, 1, 2, 3], _pl().Int128), _WIDE),
    "UInt128": (lambda: ([0, 1, 2, 3], _pl().UInt128), _WIDE),
    "Boolean": (lambda: ([True, False, True, True], _pl().Boolean), None),
    "String": (lambda: (_TEXTS, _pl().String), None),
    "Binary": (lambda: ([b"\0", b"", b"\xff", b"a"], _pl().Binary), None),
    "Categorical": (lambda: (["a", "b", "a", "c"], _pl().Categorical), None),
    "Enum": (lambda: (["a", "b", "a", "c"], _pl().Enum(["c", "b", "a"])), None),
    "List": (lambda: ([[1, 2], [], [3], [4]], _pl().List(_pl().Int64)), None),
    "List of String": (lambda: ([["a"], [], ["b", "c"], [""]], _pl().List(_pl().String)), None),
    "List of Categorical": (lambda: ([["a"], [], ["b", "a"], ["c"]], _pl().List(_pl().Categorical)), None),
    "List of List": (lambda: ([[[1], [2, 3]], [], [[4]], []], _pl().List(_pl().List(_pl().Int64))), RAGGED),
    "List of Array": (lambda: ([[[1, 2]], [], [[3, 4], [5, 6]], []], _pl().List(_pl().Array(_pl().Int64, 2))), None),
    "Array": (lambda: ([[1, 2], [3, 4], [5, 6], [7, 8]], _pl().Array(_pl().Float32, 2)), None),
    "Array of two dimensions": (lambda: ([[[1, 2], [3, 4], [5, 6]]] * 4, _pl().Array(_pl().Int16, (3, 2))), None),
    "Struct": (lambda: ([{"a": i, "b": text} for i, text in enumerate(_TEXTS)], None), None),
    "List of Struct": (lambda: ([[{"a": i, "b": "x"}] * i for i in range(1, 5)], None), None),
    "Decimal": (lambda: ([decimal.Decimal("1.25")] * 4, _pl().Decimal(10, 2)), DECIMALS),
    "Date": (lambda: ([_NOW.date()] * 4, _pl().Date), TIMES),
    "Time": (lambda: ([_NOW.time()] * 4, _pl().Time), TIMES),
    **{f"Datetime in {unit}": ((lambda unit=unit: ([_NOW] * 4, _pl().Datetime(unit))), TIMES) for unit in ("ms", "us", "ns")},
    "Datetime with a zone": (lambda: ([_NOW.replace(tzinfo=dt.UTC)] * 4, _pl().Datetime("us", "UTC")), TIMES),
    "Duration": (lambda: ([dt.timedelta(seconds=1)] * 4, _pl().Duration("us")), TIMES),
    "Null": (lambda: ([None] * 4, _pl().Null), OTHERS),
    "a missing value": (lambda: ([1, None, 3, 4], _pl().Int64), "has no value (null) in row 1"),
}
_SETTINGS: dict[str, dict[str, Any]] = {
    **{f"compressed by {each}": {"compression": each} for each in ("lz4", "uncompressed", "snappy", "gzip", "brotli", "zstd")},
    "small pages": {"data_page_size": 64},
    "without statistics": {"statistics": False},
    "row groups": {"row_group_size": 300},
}
_IPC_SETTINGS: dict[str, dict[str, Any]] = {
    **{f"compressed by {each}": {"compression": each} for each in ("uncompressed", "lz4", "zstd")},
    "for older readers": {"compat_level": "oldest"},
}


def cells() -> Iterator[Cell]:
    for form in ("Parquet", "Arrow"):
        for name, (make, refused) in _COLUMNS.items():
            yield Cell(form, "polars", name, functools.partial(_column, form, make), refused)
        settings = _SETTINGS if form == "Parquet" else _IPC_SETTINGS
        for name, each in settings.items():
            yield Cell(form, "polars", name, functools.partial(_several, form, each))
    yield Cell("Arrow", "polars", "stream", functools.partial(_several, "stream", {}))
    yield Cell("Parquet", "polars", "sink_parquet", functools.partial(_several, "sink", {}))
    yield Cell("Parquet", "polars", "use_pyarrow=True", functools.partial(_several, "Parquet", {"use_pyarrow": True}))
    yield Cell("Arrow", "polars", "to_arrow() in memory", _in_memory)


def _written(form: str, frame: Any, path: Path, settings: dict[str, Any]) -> tuple[Any, Any]:
    """What reads the file by Replicant, and the frame that polars reads."""
    from replicant.data import ArrowDataset, ParquetDataset

    pl = _pl()
    if settings.get("compat_level"):
        settings = {"compat_level": pl.CompatLevel.oldest()}
    if form == "sink":
        frame.lazy().sink_parquet(path, **settings)
    elif form == "Parquet":
        frame.write_parquet(path, **settings)
    elif form == "stream":
        frame.write_ipc_stream(path, **settings)
    else:
        frame.write_ipc(path, **settings)
    read = {"sink": pl.read_parquet, "Parquet": pl.read_parquet, "stream": pl.read_ipc_stream, "Arrow": pl.read_ipc}[form]
    kind = ParquetDataset if form in ("sink", "Parquet") else ArrowDataset
    return lambda: rows(kind(path)), read(path)


def _column(form: str, make: Any, folder: Path) -> Any:
    values, dtype = make()
    read, back = _written(form, _pl().DataFrame({"x": _pl().Series(values, dtype=dtype)}), folder / "file", {})
    return read, [{"x": _value(each)} for each in back["x"].to_list()]


def _value(value: Any) -> Any:
    """A list of dicts as a dict of lists."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {name: [each[name] for each in value] for name in value[0]}
    return value


def _several(form: str, settings: dict[str, Any], folder: Path) -> Any:
    frame = _pl().DataFrame(
        {
            "x": np.arange(1000) % 7,
            "y": np.arange(1000) / 7,
            "text": [f"text {i % 30}" for i in range(1000)],
            "kind": _pl().Series([f"kind {i % 3}" for i in range(1000)], dtype=_pl().Categorical),
            "list": [[i] * (i % 3) for i in range(1000)],
        }
    )
    read, back = _written(form, frame, folder / "file", settings)
    return read, back.to_dicts()


def _in_memory(folder: Path) -> Any:
    from replicant.data import ArrowDataset

    frame = _pl().DataFrame(
        {"x": [1, 2], "text": ["a", "b"], "kind": _pl().Series(["k", "l"], dtype=_pl().Categorical), "list": [[1], []]}
    )
    return lambda: rows(ArrowDataset(frame.to_arrow())), frame.to_dicts()
