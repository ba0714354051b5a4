"""Parquet files of PyArrow: every type, encoding and compression."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _arrow_types import columns, values
from _cells import Cell, rows

FORM, WRITER = "Parquet", "pyarrow"
# Types that PyArrow does not write as Parquet.
_NOT_WRITTEN = {"sparse union", "dense union", "month_day_nano_interval"} | {
    name for name in columns() if name.startswith("run_end_encoded")
}

_SETTINGS: dict[str, dict[str, Any]] = {
    **{f"compressed by {each}": {"compression": each} for each in ("none", "snappy", "gzip", "brotli", "zstd", "lz4")},
    **{f"version {each}": {"version": each} for each in ("1.0", "2.4", "2.6")},
    "data pages of version 2": {"data_page_version": "2.0"},
    "no dictionaries": {"use_dictionary": False},
    "small pages": {"data_page_size": 1, "write_batch_size": 1},
    "checksums of pages": {"write_page_checksum": True},
    "an index of pages": {"write_page_index": True},
    "no schema of Arrow": {"store_schema": False},
    "for Spark": {"flavor": "spark"},
    "no statistics": {"write_statistics": False},
}
_ENCODINGS = {
    "DELTA_BINARY_PACKED": "x",
    "BYTE_STREAM_SPLIT": "y",
    "DELTA_LENGTH_BYTE_ARRAY": "text",
    "DELTA_BYTE_ARRAY": "text",
    "RLE": "flag",
    "PLAIN": "text",
}


def cells() -> Iterator[Cell]:
    for name, (make, refused) in columns().items():
        if name not in _NOT_WRITTEN:
            yield Cell(FORM, WRITER, name, functools.partial(_types, make), refused)
    for what, settings in _SETTINGS.items():
        yield Cell(FORM, WRITER, what, functools.partial(_several, settings))
    for encoding, column in _ENCODINGS.items():
        settings = {"column_encoding": {column: encoding}, "use_dictionary": False}
        yield Cell(FORM, WRITER, f"encoded by {encoding}", functools.partial(_several, settings))
    yield Cell(FORM, WRITER, "timestamps of 96 bits", _int96, "Dates and times are not numbers")
    yield Cell(FORM, WRITER, "no rows", _empty)
    yield Cell(FORM, WRITER, "missing values", _missing, "has no value (null) in row 1")
    yield Cell(FORM, WRITER, "missing values, filled", _filled)
    yield Cell(FORM, WRITER, "names with dots", _dots)
    yield Cell(FORM, WRITER, "a name twice", _twice, "has 2 columns with the name 'x'")


def _written(path: Path, table: Any, **settings: Any) -> Any:
    import pyarrow.parquet as pq

    pq.write_table(table, path, **{"row_group_size": 3, **settings})
    return pq.read_table(path)


def _read(path: Path, **settings: Any) -> list[Any]:
    from replicant.data import ParquetDataset

    return rows(ParquetDataset(path, **settings))


def _types(make: Any, folder: Path) -> Any:
    import pyarrow as pa

    path = folder / "file.parquet"
    back = _written(path, pa.table({"x": make()}))
    return lambda: _read(path), [{"x": value} for value in values(back["x"])]


def _several(settings: dict[str, Any], folder: Path) -> Any:
    import pyarrow as pa

    path, count = folder / "file.parquet", 1000
    table = pa.table(
        {
            "x": pa.array([i * i % 97 for i in range(count)], pa.int32()),
            "y": pa.array([i / 7 for i in range(count)], pa.float32()),
            "text": [f"text {i % 50}" * (i % 3) for i in range(count)],
            "flag": [i % 3 == 0 for i in range(count)],
            "list": [[i] * (i % 4) for i in range(count)],
        }
    )
    back = _written(path, table, row_group_size=300, **settings)
    made = {name: values(back[name]) for name in back.column_names}
    return lambda: _read(path), [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]


def _int96(folder: Path) -> Any:
    import pyarrow as pa

    path = folder / "file.parquet"
    _written(path, pa.table({"x": pa.array([1, 2], pa.timestamp("ns"))}), use_deprecated_int96_timestamps=True)
    return lambda: _read(path), None


def _empty(folder: Path) -> Any:
    import pyarrow as pa

    path = folder / "file.parquet"
    _written(path, pa.table({"x": pa.array([], pa.int8())}))
    return lambda: [_read(path)], [[]]


def _missing(folder: Path) -> Any:
    import pyarrow as pa

    path = folder / "file.parquet"
    _written(path, pa.table({"x": [1, None, 3]}))
    return lambda: _read(path), None


def _filled(folder: Path) -> Any:
    import pyarrow as pa

    path = folder / "file.parquet"
    back = _written(path, pa.table({"x": [1, None, 3], "list": [[1, None], [], [None]], "text": ["a", None, "b"]}))
    theirs = [
        {"x": x or 0, "list": [each or 0 for each in items], "text": text or "none"}
        for x, items, text in zip(*(back[name].to_pylist() for name in back.column_names), strict=True)
    ]
    return lambda: _read(path, fill_null={"x": 0, "list": 0, "text": "none"}), theirs


def _dots(folder: Path) -> Any:
    import pyarrow as pa

    path = folder / "file.parquet"
    back = _written(path, pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], "": [5, 6], "ä €": [7, 8]}))
    return lambda: _read(path), back.to_pylist()


def _twice(folder: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "file.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), path)
    return lambda: _read(path), None
