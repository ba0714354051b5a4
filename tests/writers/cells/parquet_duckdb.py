"""Parquet files of DuckDB."""

import functools
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _arrow_types import DECIMALS, OTHERS, RAGGED, TIMES
from _cells import Cell, rows

_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
# For each type, the SQL of a value that depends on the number i, and the words with which the column is refused.
_COLUMNS: dict[str, tuple[str, str | None]] = {
    **{name: (f"(i * 7 % 100)::{name}", None) for name in _INTEGERS},
    "FLOAT": ("(i / 7)::FLOAT", None),
    "DOUBLE": ("i / 7", None),
    "HUGEINT": ("i::HUGEINT", None),
    "UHUGEINT": ("i::UHUGEINT", None),
    "BOOLEAN": ("i % 3 = 0", None),
    "VARCHAR": ("'ä' || i", None),
    "BLOB": ("('\\xFF' || i)::BLOB", None),
    "ENUM": ("(CASE i % 2 WHEN 0 THEN 'a' ELSE 'b' END)::kind", None),
    "UUID": ("('00000000-0000-0000-0000-00000000000' || i % 10)::UUID", None),
    "BIT": ("'101'::BIT", None),
    "JSON": ("('{\"a\": ' || i || '}')::JSON", None),
    "LIST": ("range(i % 4)", None),
    "LIST of VARCHAR": ("['a' || i, 'b']", None),
    "LIST of LIST": ("[range(i % 3)]", RAGGED),
    "ARRAY": ("[i, i + 1]::INTEGER[2]", None),
    "STRUCT": ("{'a': i, 'b': 'x'}", None),
    "LIST of STRUCT": ("[{'a': i, 'b': 'x'}]", None),
    "MAP": ("MAP {'a': i}", OTHERS),
    "DECIMAL": ("(i / 4)::DECIMAL(10, 2)", DECIMALS),
    "DATE": ("DATE '2026-11-30'", TIMES),
    "TIME": ("TIME '01:02:03'", TIMES),
    **{
        name: (f"TIMESTAMP '2026-11-30 01:02:03'::{name}", TIMES)
        for name in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
    },
    "TIMESTAMP WITH TIME ZONE": ("TIMESTAMPTZ '2026-11-30 01:02:03+00'", TIMES),
    "a NULL": ("CASE WHEN i = 1 THEN NULL ELSE i END", "has no value (null) in row 1"),
}
_SETTINGS = {
    **{f"compressed by {each}": f"COMPRESSION {each}" for each in ("uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4_raw")},
    "PARQUET_VERSION V2": "PARQUET_VERSION V2",
    "row groups": "ROW_GROUP_SIZE 2048",
}


def cells() -> Iterator[Cell]:
    for name, (sql, refused) in _COLUMNS.items():
        yield Cell("Parquet", "duckdb", name, functools.partial(_column, sql), refused)
    for name, settings in _SETTINGS.items():
        yield Cell("Parquet", "duckdb", name, functools.partial(_several, settings))
    yield Cell("Parquet", "duckdb", "INTERVAL, as its 12 bytes", _interval)
    yield Cell("Arrow", "duckdb", "to_arrow_table() in memory", _in_memory)
    yield Cell("Parquet", "duckdb", "PER_THREAD_OUTPUT: a folder", _folder)


def _connection() -> Any:
    import duckdb

    connection = duckdb.connect()
    connection.execute("CREATE TYPE kind AS ENUM ('a', 'b')")
    return connection


def _copied(sql: str, settings: str, path: Path) -> Any:
    """Write the answer of a query, and return what DuckDB reads of it."""
    with _connection() as connection:
        connection.execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet{', ' + settings if settings else ''})")
        return connection.execute(f"SELECT * FROM read_parquet('{path}')").to_arrow_table().to_pylist()


def _read(path: Any) -> list[Any]:
    from replicant.data import ParquetDataset

    return rows(ParquetDataset(path))


def _column(sql: str, folder: Path) -> Any:
    path = folder / "file.parquet"
    back = _copied(f"SELECT {sql} AS x FROM range(7) t(i)", "", path)
    as_uuid = "::UUID" in sql
    return lambda: _read(path), [{"x": uuid.UUID(row["x"]) if as_uuid else _value(row["x"])} for row in back]


def _interval(folder: Path) -> Any:
    path = folder / "file.parquet"
    back = _copied("SELECT INTERVAL (i) MONTH + INTERVAL 2 DAY + INTERVAL 3 SECOND AS x FROM range(3) t(i)", "", path)
    theirs = [(row["x"].months, row["x"].days, row["x"].nanoseconds // 1_000_000) for row in back]
    return lambda: [struct.unpack("<III", row["x"]) for row in _read(path)], theirs


def _value(value: Any) -> Any:
    """A list of dicts as a dict of lists."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {name: [each[name] for each in value] for name in value[0]}
    return value


def _several(settings: str, folder: Path) -> Any:
    path = folder / "file.parquet"
    back = _copied(
        "SELECT i AS x, i / 7 AS y, 'text ' || i % 30 AS text, range(i % 4) AS list FROM range(5000) t(i)", settings, path
    )
    return lambda: _read(path), back


def _in_memory(folder: Path) -> Any:
    from replicant.data import ArrowDataset

    with _connection() as connection:
        table = connection.execute("SELECT i AS x, 'a' || i AS text, range(i) AS list FROM range(5) t(i)").to_arrow_table()
    return lambda: rows(ArrowDataset(table)), table.to_pylist()


def _folder(folder: Path) -> Any:
    with _connection() as connection:
        path = folder / "made"
        connection.execute(f"COPY (SELECT i AS x FROM range(300000) t(i)) TO '{path}' (FORMAT parquet, PER_THREAD_OUTPUT)")
        back = connection.execute(f"SELECT * FROM read_parquet('{path}/*.parquet')").to_arrow_table().to_pylist()
    return lambda: sorted(row["x"] for row in _read(sorted(path.glob("*.parquet")))), sorted(row["x"] for row in back)
