"""Arrow files of PyArrow: both formats, every type, compressed, with dictionaries that grow or change."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _arrow_types import columns, values
from _cells import Cell, rows

FORM, WRITER = "Arrow", "pyarrow"


def cells() -> Iterator[Cell]:
    for name, (make, refused) in columns().items():
        yield Cell(FORM, WRITER, name, functools.partial(_types, make), refused)
    for kind in ("file", "stream"):
        for compression in ("lz4", "zstd"):
            settings = {"compression": compression}
            yield Cell(FORM, WRITER, f"{kind}, compressed by {compression}", functools.partial(_several, kind, settings))
        yield Cell(
            FORM,
            WRITER,
            f"{kind}, dictionaries that grow",
            functools.partial(_dictionaries, kind, {"emit_dictionary_deltas": True}),
        )
        yield Cell(FORM, WRITER, f"{kind}, an old version of metadata", functools.partial(_several, kind, {"metadata_version": 3}))
        yield Cell(FORM, WRITER, f"{kind}, no rows", functools.partial(_empty, kind))
    yield Cell(FORM, WRITER, "stream, dictionaries that change", functools.partial(_dictionaries, "stream", {}))
    yield Cell(FORM, WRITER, "Feather 2", _feather)
    yield Cell(FORM, WRITER, "table in memory, several pieces", _in_memory)


def _written(path: Path, kind: str, batches: list[Any], **settings: Any) -> Any:
    import pyarrow as pa

    if "metadata_version" in settings:
        settings["metadata_version"] = pa.ipc.MetadataVersion.V4
    new, open_ = (pa.ipc.new_file, pa.ipc.open_file) if kind == "file" else (pa.ipc.new_stream, pa.ipc.open_stream)
    with new(str(path), batches[0].schema, options=pa.ipc.IpcWriteOptions(**settings)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    with open_(str(path)) as reader:
        return reader.read_all()


def _read(path: Any) -> list[Any]:
    from replicant.data import ArrowDataset

    return rows(ArrowDataset(path))


def _expected(table: Any) -> list[Any]:
    made = {name: values(table[name]) for name in table.column_names}
    return [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]


def _types(make: Any, folder: Path) -> Any:
    import pyarrow as pa

    path, column = folder / "file.arrow", make()
    batches = [pa.record_batch({"x": each}) for each in (column[:3], column[3:])]
    back = _written(path, "file", batches)
    return lambda: _read(path), _expected(back)


def _several(kind: str, settings: dict[str, Any], folder: Path) -> Any:
    import pyarrow as pa

    path, count = folder / "file.arrow", 500
    table = pa.table(
        {"x": list(range(count)), "text": [f"{i % 7}" for i in range(count)], "list": [[1.5] * (i % 3) for i in range(count)]}
    )
    back = _written(path, kind, table.to_batches(max_chunksize=200), **settings)
    return lambda: _read(path), _expected(back)


def _dictionaries(kind: str, settings: dict[str, Any], folder: Path) -> Any:
    import pyarrow as pa

    path = folder / "file.arrow"
    grown = (["a", "b"], ["a", "b", "c"]) if settings else (["a", "b"], ["c", "a"])
    arrays = [pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), pa.array(words)) for words in grown]
    back = _written(path, kind, [pa.record_batch({"x": each}) for each in arrays], **settings)
    return lambda: _read(path), _expected(back)


def _empty(kind: str, folder: Path) -> Any:
    import pyarrow as pa

    path = folder / "file.arrow"
    _written(path, kind, [pa.record_batch({"x": pa.array([], pa.int8())})])
    return lambda: [_read(path)], [[]]


def _feather(folder: Path) -> Any:
    import pyarrow as pa
    from pyarrow import feather

    path = folder / "file.feather"
    feather.write_feather(pa.table({"x": list(range(100)), "text": ["a"] * 100}), path, chunksize=30)
    return lambda: _read(path), _expected(feather.read_table(path))


def _in_memory(folder: Path) -> Any:
    import pyarrow as pa

    table = pa.concat_tables(
        [pa.table({"x": [i], "list": pa.array([[i] * i], pa.list_(pa.int64())), "text": [str(i)]}) for i in range(5)]
    )
    return lambda: _read(table), _expected(table)
