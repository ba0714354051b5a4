"""Parquet and Feather files of pandas, and Parquet files of fastparquet."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _arrow_types import TIMES
from _cells import Cell, rows

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def cells() -> Iterator[Cell]:
    for form, writer in (("Parquet", "pandas"), ("Arrow", "pandas"), ("Parquet", "fastparquet")):
        for name, (make, refused) in _COLUMNS.items():
            if writer == "fastparquet" and name in ("lists", "arrays"):
                continue  # which it writes as texts, see below
            yield Cell(form, writer, name, functools.partial(_column, form, writer, make), refused)
        yield Cell(form, writer, "NaN in float64, filled", functools.partial(_filled, form, writer))
        if form == "Parquet":
            yield Cell(form, writer, "an index of texts", functools.partial(_index, writer))
            for each in ("snappy", "gzip", "zstd", "brotli", "lz4"):
                yield Cell(form, writer, f"compressed by {each}", functools.partial(_compressed, writer, each.upper()))
    yield Cell("Parquet", "fastparquet", "lists, as texts of JSON", _as_json)
    yield Cell("Parquet", "fastparquet", "several row groups, appended", _appended)
    yield Cell("Parquet", "fastparquet", "a folder of files, one for each row group", _folder)
    yield Cell("Parquet", "pandas", "partitions in folders", _partitions)


def _pd() -> Any:
    import pandas as pd

    return pd


def _numbers(name: str) -> Any:
    limits = np.iinfo(name)
    return np.array([0, 1, limits.max, limits.min], name)


_TEXTS = ["a", "ä", "", "b"]
_COLUMNS: dict[str, Any] = {
    **{name: ((lambda name=name: _numbers(name)), None) for name in INTEGERS},
    "float32": (lambda: np.array([0.5, -np.inf, 2, 3], "f4"), None),
    "float64": (lambda: np.array([0.5, np.inf, -0.0, 3]), None),
    "bool": (lambda: np.array([True, False, True, True]), None),
    "texts": (lambda: _TEXTS, None),
    "texts of dtype object": (lambda: np.array(_TEXTS, object), None),
    "bytes": (lambda: np.array([b"\0\xff", b"", b"a", b"b"], object), None),
    "a category of texts": (lambda: _pd().Categorical(["a", "b", "a", "c"]), None),
    "a category of numbers": (lambda: _pd().Categorical([10, 20, 10, 30]), None),
    "an ordered category": (lambda: _pd().Categorical(["a", "b", "a", "c"], ["c", "b", "a"], ordered=True), None),
    "Int64 without missing values": (lambda: _pd().array([1, 2, 3, 4], "Int64"), None),
    "Int64 with a missing value": (lambda: _pd().array([1, None, 3, 4], "Int64"), "has no value (null) in row 1"),
    "boolean with a missing value": (lambda: _pd().array([True, None, False, True], "boolean"), "has no value (null) in row 1"),
    "a text that is missing": (lambda: np.array(["a", None, "b", "c"], object), "has no value (null) in row 1"),
    "dates and times": (lambda: _pd().to_datetime(["2026-01-01"] * 4), TIMES),
    "dates and times with a zone": (lambda: _pd().to_datetime(["2026-01-01"] * 4, utc=True), TIMES),
    "durations": (lambda: _pd().to_timedelta([1, 2, 3, 4], "s"), TIMES),
    "lists": (lambda: [[1, 2], [3], [], [4]], None),
    "arrays": (lambda: [np.array([1.5, 2.5]), np.array([3.5]), np.array([]), np.array([4.5])], None),
    "NaN in float64, which becomes null": (lambda: np.array([0.5, np.nan, 2, 3]), "has no value (null) in row 1"),
}


def _column(form: str, writer: str, make: Any, folder: Path, **settings: Any) -> Any:
    pd = _pd()
    from replicant.data import ArrowDataset, ParquetDataset

    frame, path = pd.DataFrame({"x": make()}), folder / "file"
    if form == "Arrow":
        frame.to_feather(path)
        return lambda: rows(ArrowDataset(path, **settings)), _values(pd.read_feather(path))
    frame.to_parquet(path, engine=_engine(writer))
    return lambda: rows(ParquetDataset(path, **settings)), _values(pd.read_parquet(path, engine=_engine(writer)))


def _filled(form: str, writer: str, folder: Path) -> Any:
    return _column(form, writer, lambda: np.array([0.5, np.nan, 2, 3]), folder, fill_null={"x": np.nan})


def _as_json(folder: Path) -> Any:
    read, theirs = _column("Parquet", "fastparquet", lambda: [[1, 2], [3], [], [4]], folder)
    return lambda: [{"x": json.loads(row["x"])} for row in read()], theirs


def _engine(writer: str) -> str:
    return "pyarrow" if writer == "pandas" else writer


def _values(frame: Any) -> list[Any]:
    return [{"x": value} for value in frame["x"]]


def _index(writer: str, folder: Path) -> Any:
    pd = _pd()
    from replicant.data import ParquetDataset

    frame, path = pd.DataFrame({"x": [1, 2, 3]}, index=pd.Index(["a", "b", "c"], name="key")), folder / "file.parquet"
    frame.to_parquet(path, engine=_engine(writer))
    back = pd.read_parquet(path, engine=_engine(writer)).reset_index()
    return lambda: rows(ParquetDataset(path)), back.to_dict("records")


def _compressed(writer: str, name: str, folder: Path) -> Any:
    pd = _pd()
    from replicant.data import ParquetDataset

    frame, path = pd.DataFrame({"x": np.arange(1000) % 7, "y": np.arange(1000) / 7}), folder / "file.parquet"
    frame.to_parquet(path, engine=_engine(writer), compression=name if writer == "fastparquet" else name.lower())
    return lambda: rows(ParquetDataset(path)), pd.read_parquet(path, engine=_engine(writer)).to_dict("records")


def _appended(folder: Path) -> Any:
    import fastparquet

    from replicant.data import ParquetDataset

    path = str(folder / "file.parquet")
    for begin in (0, 10):
        fastparquet.write(path, _pd().DataFrame({"x": np.arange(begin, begin + 10)}), row_group_offsets=4, append=begin > 0)
    return lambda: rows(ParquetDataset(path)), fastparquet.ParquetFile(path).to_pandas().to_dict("records")


def _folder(folder: Path) -> Any:
    import fastparquet

    from replicant.data import ParquetDataset

    path = str(folder / "made")
    fastparquet.write(path, _pd().DataFrame({"x": np.arange(10)}), row_group_offsets=4, file_scheme="hive")
    files = sorted((folder / "made").glob("part*.parquet"))
    return lambda: rows(ParquetDataset(files)), fastparquet.ParquetFile(path).to_pandas().to_dict("records")


def _partitions(folder: Path) -> Any:
    pd = _pd()
    from replicant.data import ParquetDataset

    frame, path = pd.DataFrame({"x": [1, 2, 3], "kind": ["a", "b", "a"]}), folder / "made"
    frame.to_parquet(path, partition_cols=["kind"])
    files = sorted(path.glob("*/*.parquet"))
    return lambda: rows(ParquetDataset(files)), [{"x": int(x)} for x in pd.read_parquet(path)["x"]]
