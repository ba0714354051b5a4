"""JSON Lines of pandas, polars, DuckDB, datasets and Python."""

import functools
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import Cell, rows

FORM = "JSON Lines"
_TEXTS = ["a", "ä€😀", 'q"q', "\\", "\n\t\r", "\x7f\u2028", "", "/"]


def cells() -> Iterator[Cell]:
    for suffix, refused in (
        ("", None),
        (".gz", None),
        (".zst", None),
        (".bz2", "compressed by bzip2"),
        (".xz", "compressed by xz"),
    ):
        yield Cell(
            FORM, "pandas", f"to_json, lines{', ' + suffix if suffix else ''}", functools.partial(_pandas, suffix, {}), refused
        )
    yield Cell(FORM, "pandas", "double_precision=15", functools.partial(_pandas, "", {"double_precision": 15}))
    yield Cell(FORM, "pandas", "force_ascii=False", functools.partial(_pandas, "", {"force_ascii": False}))
    yield Cell(FORM, "pandas", "NaN, which becomes null", functools.partial(_pandas_missing, {}), "column 'y' has no value")
    yield Cell(FORM, "pandas", "NaN, filled", functools.partial(_pandas_missing, {"fill_null": {"y": float("nan")}}))
    yield Cell(FORM, "pandas", "without lines=True", _pandas_whole, "it is not an object but list")
    yield Cell(FORM, "polars", "write_ndjson", _polars)
    yield Cell(FORM, "polars", "sink_ndjson, gzip", functools.partial(_polars, compression="gzip"))
    yield Cell(FORM, "polars", "sink_ndjson, zstd", functools.partial(_polars, compression="zstd"))
    yield Cell(FORM, "polars", "NaN and infinity, which become null", _polars_nan, "column 'x' has no value")
    yield Cell(FORM, "polars", "missing values", _polars_missing, "column 'x' has no value")
    yield Cell(FORM, "duckdb", "COPY", functools.partial(_duckdb, "", ""))
    yield Cell(FORM, "duckdb", "COPY, gzip", functools.partial(_duckdb, ".gz", ", COMPRESSION gzip"))
    yield Cell(FORM, "duckdb", "COPY, zstd", functools.partial(_duckdb, ".zst", ", COMPRESSION zstd"))
    yield Cell(FORM, "duckdb", "COPY, ARRAY true", functools.partial(_duckdb, "", ", ARRAY true"), "it is not JSON")
    yield Cell(FORM, "datasets", "to_json", functools.partial(_datasets, ""))
    yield Cell(FORM, "datasets", "to_json, gzip", functools.partial(_datasets, ".gz"))
    yield Cell(FORM, "datasets", "load_dataset of such a file", _load_dataset)
    yield Cell(FORM, "Python", "json.dumps", functools.partial(_python, {}, "\n"))
    yield Cell(FORM, "Python", "json.dumps, ensure_ascii=False", functools.partial(_python, {"ensure_ascii": False}, "\n"))
    yield Cell(FORM, "Python", "json.dumps, CR LF", functools.partial(_python, {}, "\r\n"))
    yield Cell(FORM, "Python", "json.dumps, a byte order mark", functools.partial(_python, {}, "\n", encoding="utf-8-sig"))
    yield Cell(FORM, "Python", "json.dumps, gzip in two members", _members)
    yield Cell(FORM, "Python", "json.dumps, indent=2", functools.partial(_python, {"indent": 2}, "\n"), "it is not JSON")
    yield Cell(FORM, "Python", "json.dumps, UTF-16", functools.partial(_python, {}, "\n", encoding="utf-16"), "it is not UTF-8")
    yield Cell(FORM, "Python", "json.dumps, NaN and Infinity", _python_nan)
    yield Cell(FORM, "orjson", "dumps", _orjson)


def _read(path: Path, **settings: Any) -> list[Any]:
    from replicant.data import JsonLinesDataset

    return rows(JsonLinesDataset(path, **settings))


def _wide(x: str = "int64", y: str = "float64") -> Any:
    """A signature with 64 bits, in which nothing is rounded."""
    from replicant.data import TensorSpec

    return {"x": TensorSpec((), x), "y": TensorSpec((), y), "text": TensorSpec((), object), "flag": TensorSpec((), "bool")}


def _table() -> dict[str, Any]:
    return {
        "x": [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 5, 6, 7],
        "y": [0.1, -0.0, 1e300, 5e-324, 1 / 3, 1.5, 2.0, 1e22],
        "text": _TEXTS,
        "flag": [True, False] * 4,
    }


def _pandas(suffix: str, settings: dict[str, Any], folder: Path) -> Any:
    import pandas as pd

    path = folder / f"file.jsonl{suffix}"
    table = {**_table(), "y": [0.1, -0.5, 1e10, 0.25, 1 / 3, 1.5, 2.0, 1e5]}  # of others, pandas writes ten digits
    table["x"][3:5] = [2**40, -(2**40)]
    pd.DataFrame(table).to_json(path, orient="records", lines=True, **settings)
    back = pd.read_json(path, orient="records", lines=True, dtype={"y": "float64"}, precise_float=True)
    return lambda: _read(path, output_signature=_wide()), back.to_dict("records")


def _pandas_missing(settings: dict[str, Any], folder: Path) -> Any:
    import pandas as pd

    path = folder / "file.jsonl"
    pd.DataFrame({"x": [1, 2], "y": [0.5, np.nan]}).to_json(path, orient="records", lines=True)
    back = pd.read_json(path, orient="records", lines=True)
    return lambda: _read(path, **settings), back.to_dict("records")


def _pandas_whole(folder: Path) -> Any:
    import pandas as pd

    path = folder / "file.json"
    pd.DataFrame({"x": [1, 2]}).to_json(path, orient="records")
    return lambda: _read(path), None


def _polars(folder: Path, compression: str | None = None) -> Any:
    import polars as pl

    path, frame = folder / f"file.jsonl{ {'gzip': '.gz', 'zstd': '.zst'}.get(compression or '', '') }", pl.DataFrame(_table())
    if compression is None:
        frame.write_ndjson(path)
    else:
        frame.lazy().sink_ndjson(path, compression=compression)
    return lambda: _read(path, output_signature=_wide()), pl.read_ndjson(path).to_dicts()


def _polars_nan(folder: Path) -> Any:
    import polars as pl

    path = folder / "file.jsonl"
    pl.DataFrame({"x": [0.5, float("nan"), float("inf")]}).write_ndjson(path)
    return lambda: _read(path), None


def _polars_missing(folder: Path) -> Any:
    import polars as pl

    path = folder / "file.jsonl"
    pl.DataFrame({"x": [1, None, 2]}).write_ndjson(path)
    return lambda: _read(path), None


def _duckdb(suffix: str, settings: str, folder: Path) -> Any:
    import duckdb

    path = folder / f"file.json{suffix}"
    query = "SELECT i AS x, i / 7 AS y, 'ä\"' || i AS text, i % 2 = 0 AS flag FROM range(5) t(i)"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT json{settings})")
        back = connection.execute(f"SELECT * FROM read_json('{path}')").to_arrow_table().to_pylist()
    return lambda: _read(path, output_signature=_wide()), back


def _datasets(suffix: str, folder: Path) -> Any:
    import datasets

    path = folder / f"file.jsonl{suffix}"
    datasets.Dataset.from_dict(_table()).to_json(path, **({"compression": "gzip"} if suffix else {}))
    return lambda: _read(path, output_signature=_wide()), list(
        datasets.Dataset.from_json(str(path), cache_dir=str(folder / "cache"))
    )


def _load_dataset(folder: Path) -> Any:
    import datasets

    from replicant.data import Dataset

    path = folder / "file.jsonl"
    path.write_text("".join(json.dumps({"x": i, "text": "ä" * i, "list": [i] * i, "more": {"y": i / 3}}) + "\n" for i in range(4)))
    made = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(folder / "cache"))
    return lambda: rows(Dataset.from_huggingface(made)), list(made)


def _python(settings: dict[str, Any], end: str, folder: Path, encoding: str = "utf-8") -> Any:
    path, table = folder / "file.jsonl", _table()
    lines = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    text = "".join(json.dumps(line, **settings) + end for line in lines)
    path.write_bytes(text.encode(encoding))
    theirs = [json.loads(json.dumps(line)) for line in lines]
    return lambda: _read(path, output_signature=_wide()), theirs


def _members(folder: Path) -> Any:
    path = folder / "file.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"x": 1}\n{"x"') + gzip.compress(b": 2}\n"))
    with gzip.open(path) as file:
        return lambda: _read(path), [json.loads(line) for line in file]


def _python_nan(folder: Path) -> Any:
    path = folder / "file.jsonl"
    path.write_text("".join(json.dumps({"x": each}) + "\n" for each in (0.5, float("nan"), float("inf"), -float("inf"))))
    return lambda: _read(path), [json.loads(line) for line in path.read_text().splitlines()]


def _orjson(folder: Path) -> Any:
    import orjson

    path, table = folder / "file.jsonl", _table()
    lines = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    path.write_bytes(b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines))
    return lambda: _read(path, output_signature=_wide()), [orjson.loads(line) for line in path.read_bytes().splitlines()]
