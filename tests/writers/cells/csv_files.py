"""CSV files of pandas, polars, DuckDB, R, NumPy and Python, which writes them as Excel does."""

import csv
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _cells import Cell, rows

FORM = "CSV"
_TEXTS = ["plain", "a,b", 'say "hi"', "two\nlines", "ä€😀", " spaces ", "semi;colon", "tab\there"]
_QUOTES = {"QUOTE_MINIMAL": csv.QUOTE_MINIMAL, "QUOTE_ALL": csv.QUOTE_ALL, "QUOTE_NONNUMERIC": csv.QUOTE_NONNUMERIC}


def cells() -> Iterator[Cell]:
    for name, quoting in _QUOTES.items():
        yield Cell(FORM, "pandas", f"to_csv, {name}", functools.partial(_pandas, {"quoting": quoting}, {}))
    yield Cell(FORM, "pandas", "to_csv, CR LF", functools.partial(_pandas, {"lineterminator": "\r\n"}, {}))
    yield Cell(FORM, "pandas", "to_csv, semicolons", functools.partial(_pandas, {"sep": ";"}, {"field_delim": ";"}))
    yield Cell(FORM, "pandas", "to_csv, tabs", functools.partial(_pandas, {"sep": "\t"}, {"field_delim": "\t"}))
    yield Cell(FORM, "pandas", "to_csv, gzip", functools.partial(_pandas, {"compression": "gzip"}, {"compression_type": "GZIP"}))
    yield Cell(
        FORM,
        "pandas",
        "to_csv, gzip, unsaid",
        functools.partial(_pandas, {"compression": "gzip"}, {}),
        'pass compression_type="GZIP"',
    )
    for each, name in (("zstd", "ZSTD"), ("bz2", "bzip2"), ("xz", "xz")):
        yield Cell(
            FORM, "pandas", f"to_csv, {each}", functools.partial(_pandas, {"compression": each}, {}), f"compressed by {name}"
        )
    yield Cell(FORM, "pandas", "to_csv, a byte order mark", functools.partial(_pandas, {"encoding": "utf-8-sig"}, {}))
    yield Cell(FORM, "pandas", "to_csv, UTF-16", functools.partial(_pandas, {"encoding": "utf-16"}, {}), "is not UTF-8 text")
    yield Cell(FORM, "pandas", "to_csv, Latin-1", _latin, "is not UTF-8 text")
    yield Cell(
        FORM,
        "pandas",
        "to_csv, doublequote=False",
        functools.partial(_pandas, {"doublequote": False, "escapechar": "\\"}, {}),
        "there are quotes inside of field 2",
    )
    yield Cell(FORM, "pandas", "to_csv with its index", _pandas_index)
    yield Cell(FORM, "pandas", "to_csv, missing values", _pandas_missing)
    yield Cell(FORM, "pandas", "to_csv, floats", _pandas_floats)
    for name in ("always", "necessary", "non_numeric"):
        yield Cell(FORM, "polars", f"write_csv, {name}", functools.partial(_polars, {"quote_style": name}))
    yield Cell(FORM, "polars", "write_csv, CR LF", functools.partial(_polars, {"line_terminator": "\r\n"}))
    yield Cell(FORM, "polars", "write_csv, a byte order mark", functools.partial(_polars, {"include_bom": True}))
    yield Cell(FORM, "duckdb", "COPY", functools.partial(_duckdb, "", {}))
    yield Cell(FORM, "duckdb", "COPY, FORCE_QUOTE", functools.partial(_duckdb, ", FORCE_QUOTE *", {}))
    yield Cell(FORM, "duckdb", "COPY, DELIMITER '|'", functools.partial(_duckdb, ", DELIMITER '|'", {"field_delim": "|"}))
    yield Cell(FORM, "duckdb", "COPY, gzip", functools.partial(_duckdb, ", COMPRESSION gzip", {"compression_type": "GZIP"}))
    yield Cell(FORM, "duckdb", "COPY, ESCAPE '\\'", functools.partial(_duckdb, ", ESCAPE '\\'", {}), "goes on after its quotes")
    for dialect, settings in (("excel", {}), ("excel-tab", {"field_delim": "\t"}), ("unix", {})):
        yield Cell(FORM, "Python", f"csv, {dialect}", functools.partial(_python, dialect, settings))
    yield Cell(
        FORM,
        "Python",
        "csv, excel with the byte order mark of Excel",
        functools.partial(_python, "excel", {}, encoding="utf-8-sig"),
    )
    yield Cell(FORM, "Python", "csv, QUOTE_NONE", _python_without_quotes)
    yield Cell(FORM, "numpy", "savetxt", _savetxt)
    settings = {"field_delim": " "}
    for what, code, ours, refused in (
        ("write.csv", "write.csv(d, path, row.names=FALSE)", {}, None),
        ("write.csv2", "write.csv2(d, path, row.names=FALSE)", {"field_delim": ";"}, None),
        ("write.table, qmethod='double'", "write.table(d, path, row.names=FALSE, qmethod='double')", settings, None),
        ("write.table", "write.table(d, path, row.names=FALSE)", settings, "goes on after its quotes"),
    ):
        yield Cell(FORM, "R", what, functools.partial(_r, code, ours), refused, program="Rscript")


def _read(path: Path, defaults: list[Any] | None = None, **settings: Any) -> list[Any]:
    """The rows of a file with a header, each with the values of its fields."""
    from replicant.data import CsvDataset

    return rows(CsvDataset(str(path), defaults or ["int64", "float64", str], header=True, **settings))


def _named(path: Path, **settings: Any) -> list[Any]:
    """The rows as `make_csv_dataset` names them."""
    from replicant.data import make_csv_dataset

    found = make_csv_dataset(str(path), 1, num_epochs=1, shuffle=False, column_defaults=["int64", "float64", str], **settings)
    return [{name: value[0] for name, value in row.items()} for row in found]


def _table() -> dict[str, Any]:
    return {
        "x": [0, -1, 2**53 + 1, 2**63 - 1, -(2**63), 5, 6, 7],
        "y": [0.1, -0.0, 1e300, 5e-324, 1 / 3, 1.5, 2.0, 1e22],
        "text": _TEXTS,
    }


def _pandas(settings: dict[str, Any], ours: dict[str, Any], folder: Path) -> Any:
    import pandas as pd

    path = folder / "file.csv"
    pd.DataFrame(_table()).to_csv(path, index=False, **settings)
    names = ("sep", "compression", "encoding", "doublequote", "escapechar")
    back = pd.read_csv(path, float_precision="round_trip", **{name: settings[name] for name in names if name in settings})
    return lambda: _named(path, **ours), back.to_dict("records")


def _latin(folder: Path) -> Any:
    import pandas as pd

    path = folder / "file.csv"
    pd.DataFrame({"x": [1], "y": [0.5], "text": ["ä"]}).to_csv(path, index=False, encoding="latin-1")
    return lambda: _named(path), None


def _pandas_index(folder: Path) -> Any:
    import pandas as pd

    path = folder / "file.csv"
    pd.DataFrame({"x": [5, 6]}, index=[3, 4]).to_csv(path)
    back = pd.read_csv(path)
    return lambda: _read(path, ["int64", "int64"]), [tuple(row) for row in back.itertuples(index=False)]


def _pandas_missing(folder: Path) -> Any:
    import pandas as pd

    path = folder / "file.csv"
    pd.DataFrame({"y": [0.5, np.nan], "text": ["a", None]}).to_csv(path, index=False)
    back = pd.read_csv(path, keep_default_na=False, dtype={"y": str}).replace("", "nan")
    theirs = [(float(y), text) for y, text in back.itertuples(index=False)]
    return lambda: _read(path, [np.nan, "nan"]), theirs


def _pandas_floats(folder: Path) -> Any:
    import pandas as pd

    path = folder / "file.csv"
    pd.DataFrame({"y": [np.inf, -np.inf, 1e-300, 0.1 + 0.2]}).to_csv(path, index=False)
    back = pd.read_csv(path, float_precision="round_trip")
    return lambda: _read(path, ["float64"]), [(value,) for value in back["y"]]


def _polars(settings: dict[str, Any], folder: Path) -> Any:
    import polars as pl

    path = folder / "file.csv"
    pl.DataFrame(_table()).write_csv(path, **settings)
    return lambda: _named(path), pl.read_csv(path).to_dicts()


def _duckdb(settings: str, ours: dict[str, Any], folder: Path) -> Any:
    import duckdb

    path = folder / "file.csv"
    texts = ", ".join("'" + text.replace("'", "''") + "'" for text in _TEXTS)
    read = settings.replace(", FORCE_QUOTE *", "")
    with duckdb.connect() as connection:
        query = f"SELECT i AS x, i / 7 AS y, [{texts}][i + 1] AS text FROM range(8) t(i)"
        connection.execute(f"COPY ({query}) TO '{path}' (FORMAT csv, HEADER{settings})")
        back = connection.execute(f"SELECT * FROM read_csv('{path}'{_as_arguments(read)})").to_arrow_table().to_pylist()
    return lambda: _named(path, **ours), back


def _as_arguments(settings: str) -> str:
    names = {"DELIMITER": "delim", "COMPRESSION": "compression", "ESCAPE": "escape"}
    words = settings.removeprefix(", ").split(" ", 1)
    if len(words) < 2:
        return ""
    value = words[1] if words[1].startswith("'") else f"'{words[1]}'"
    return f", {names[words[0]]}={value}"


def _python(dialect: str, ours: dict[str, Any], folder: Path, encoding: str = "utf-8") -> Any:
    path, table = folder / "file.csv", _table()
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, dialect=dialect)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    with path.open(newline="", encoding=encoding) as file:
        theirs = [{"x": int(row["x"]), "y": float(row["y"]), "text": row["text"]} for row in csv.DictReader(file, dialect=dialect)]
    return lambda: _named(path, **ours), theirs


def _python_without_quotes(folder: Path) -> Any:
    path = folder / "file.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_NONE, quotechar=None).writerows([["x", "text"], [1, 'a "quote"'], [2, '"']])
    with path.open(newline="") as file:
        theirs = [(int(x), text) for x, text in list(csv.reader(file, quoting=csv.QUOTE_NONE))[1:]]
    return lambda: _read(path, ["int64", str], use_quote_delim=False), theirs


def _savetxt(folder: Path) -> Any:
    path = folder / "file.csv"
    np.savetxt(path, np.arange(6).reshape(3, 2) / 7, delimiter=",", header="a,b")
    return lambda: _read(path, ["float64", "float64"]), [tuple(row) for row in np.loadtxt(path, delimiter=",")]


def _r(code: str, ours: dict[str, Any], folder: Path) -> Any:
    path = folder / "file.csv"
    texts = ", ".join(
        '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"' for text in _TEXTS
    )
    program = f"path <- '{path}'; d <- data.frame(x=0:7, y=(0:7)/7, text=c({texts})); {code}"
    reader = {";": "read.csv2(path)", " ": "read.table(path, header=TRUE, sep=' ')"}.get(
        ours.get("field_delim", ""), "read.csv(path)"
    )
    program += f"; b <- {reader}; for (i in 1:8) cat(b$x[i], '\\x01', sprintf('%a', b$y[i]), '\\x01', b$text[i], '\\x02', sep='')"
    done = subprocess.run(
        ["Rscript", "--encoding=UTF-8", "-e", program],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    theirs = [each.split("\x01") for each in done.stdout.decode().split("\x02")[:-1]]
    expected = [{"x": int(x), "y": float.fromhex(y), "text": text} for x, y, text in theirs]
    if "csv2" in code:
        return lambda: _with_commas(path), expected
    return lambda: _named(path, **ours), expected


def _with_commas(path: Path) -> list[Any]:
    read = _read(path, ["int64", str, str], field_delim=";")
    return [{"x": x, "y": float(y.replace(",", ".")), "text": text} for x, y, text in read]
