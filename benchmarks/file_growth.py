"""Measures how the time to read a file grows with each of its dimensions: members, columns, fields, depth, records, header length.

Each dimension is doubled, and the processor time of the smaller and of the larger file is taken by turns. A reader whose time grows
with the square of a dimension takes four times as long, and a small file of a stranger can keep it busy for hours.
Run: ``python benchmarks/file_growth.py [--cases tar] [--rounds 5]``.
"""

import argparse
import gzip
import io
import json
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from replicant import data as rd

Read = Callable[[], object]


def _tar(path: Path, members: Iterable[tuple[str, int]], layout: int = tarfile.GNU_FORMAT) -> Read:
    with tarfile.open(path, "w", format=layout) as file:
        for name, size in members:
            member = tarfile.TarInfo(name)
            member.size = size
            file.addfile(member, io.BytesIO(bytes(size)))
    return lambda: list(rd.TarDataset(path))


def _pax(path: Path, size: int) -> Read:
    records = b"2 " * (size // 2)
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.XHDTYPE, len(records)
    member = tarfile.TarInfo("a.txt")
    whole = head.tobuf(tarfile.USTAR_FORMAT) + records + bytes(-len(records) % 512) + member.tobuf(tarfile.USTAR_FORMAT)
    path.write_bytes(whole + bytes(1024))
    return lambda: list(rd.TarDataset(path))


def _csv(path: Path, rows: list[list[str]]) -> Read:
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    return lambda: list(rd.make_csv_dataset(str(path), 2, num_epochs=1, shuffle=False))


def _csv_text(path: Path, text: str, **settings: Any) -> Read:
    path.write_text(text)
    return lambda: list(rd.CsvDataset(path, [0], select_cols=[0], **settings).ignore_errors())


def _json(path: Path, lines: list[Any], **settings: Any) -> Read:
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else zstandard.compress(text) if path.suffix == ".zst" else text)
    return lambda: list(rd.JsonLinesDataset(path, **settings))


def _table(columns: int, rows: int = 2) -> Any:
    return pa.table({f"c{i}": np.arange(rows) for i in range(columns)})


def _names(columns: int) -> list[str]:
    return [f"c{i}" for i in range(columns)]


def _parquet(path: Path, table: Any, rows: int | None = None, **settings: Any) -> Read:
    pq.write_table(table, path, row_group_size=rows)
    return lambda: list(rd.ParquetDataset(path, **settings).batch(2))


def _arrow(path: Path, table: Any, new: Callable[..., Any], rows: int | None = None, **settings: Any) -> Read:
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return lambda: list(rd.ArrowDataset(path, **settings).batch(2))


def _mds(path: Path, columns: int, samples: int, shards: int = 1) -> Read:
    path.mkdir()
    begin = 4 * (samples + 2)
    offsets = [samples, *(begin + columns * i for i in range(samples + 1))]
    raw = np.array(offsets, "<u4").tobytes() + bytes(columns * samples)
    layout = {"format": "mds", "version": 2, "zip_data": None, "samples": samples, "column_names": _names(columns)}
    layout |= {"column_encodings": ["uint8"] * columns, "column_sizes": [1] * columns}
    found = []
    for i in range(shards):
        (path / f"{i}.mds").write_bytes(raw)
        found.append({**layout, "raw_data": {"basename": f"{i}.mds", "bytes": len(raw), "hashes": {}}})
    (path / "index.json").write_text(json.dumps({"version": 2, "shards": found}))
    return lambda: list(rd.MDSDataset(path).batch(64))


def _tfds(path: Path, features: int, examples: int, shards: int = 1) -> Read:
    path.mkdir()
    package = "tensorflow_datasets.core.features."
    whole = {"pythonClassName": f"{package}Tensor", "tensor": {"dtype": "int64", "shape": {}}}
    found = {"pythonClassName": f"{package}FeaturesDict", "featuresDict": {"features": dict.fromkeys(_names(features), whole)}}
    (path / "features.json").write_text(json.dumps(found))
    splits = [{"name": "train", "shardLengths": [examples] * shards}]
    (path / "dataset_info.json").write_text(json.dumps({"name": "made", "splits": splits}))
    for i in range(shards):
        example = rd.encode_example(dict.fromkeys(_names(features), 1))
        _ = _records(path / f"made-train.tfrecord-{i:05}-of-{shards:05}", [example] * examples)
    return lambda: list(rd.tfds_folder(path, "train").batch(64))


def _records(path: Path, records: list[bytes]) -> Read:
    with rd.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return lambda: list(rd.TFRecordDataset(path))


def _examples(columns: int) -> Read:
    record = rd.encode_example({name: i for i, name in enumerate(_names(columns))})
    features = {name: rd.FixedLenFeature((), "int64") for name in _names(columns)}
    return lambda: (rd.parse_example([record] * 2, features), rd.parse_single_example(record, features))


def _saved(path: Path, columns: int, rows: int, **settings: Any) -> Read:
    rd.Dataset.from_tensor_slices({name: np.arange(rows) for name in _names(columns)}).save(path, **settings)
    return lambda: list(rd.Dataset.load(path, **settings).batch(64))


def _cached(path: Path, columns: int, rows: int) -> Read:
    dataset = rd.Dataset.from_tensor_slices({name: np.arange(rows) for name in _names(columns)}).cache(path).batch(64)

    def read() -> None:
        path.unlink(missing_ok=True)
        list(dataset)  # fills the file
        list(dataset)

    return read


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


# For each dimension, its smaller value, and what makes a file of a value and returns its reader.
CASES: dict[str, tuple[int, Callable[[Path, int], Read]]] = {
    "tar: members of one sample": (2000, lambda path, n: _tar(path, ((f"a.{i}", 1) for i in range(n)))),
    "tar: samples": (2000, lambda path, n: _tar(path, ((f"{i}.x", 1) for i in range(n)))),
    "tar: samples of other members": (1000, lambda path, n: _tar(path, ((f"{i}.x{i}", 1) for i in range(n)))),
    "tar: members that are left out": (2000, lambda path, n: _tar(path, [*((f".{i}", 1) for i in range(n)), ("a.x", 1)])),
    "tar: bytes of a member": (8 << 20, lambda path, n: _tar(path, [("a.x", n)])),
    "tar: long names": (200_000, lambda path, n: _tar(path, [("a/" * n + "b.x", 1)])),
    "tar: pax records": (200_000, _pax),
    "csv: columns": (1000, lambda path, n: _csv(path, [_names(n), ["1"] * n, ["2"] * n])),
    "csv: rows": (4000, lambda path, n: _csv(path, [["a", "b"], *[["1", "2"]] * n])),
    "csv: rows that are left out": (4000, lambda path, n: _csv_text(path, "x\n" * n)),
    "csv: quoted fields": (50_000, lambda path, n: _csv_text(path, ",".join(['"1"'] * n) + "\n")),
    "csv: lines in quotes": (100_000, lambda path, n: _csv_text(path, '1,"' + "y\n" * n + '"\n')),
    "csv: records of two lines": (4000, lambda path, n: _csv_text(path, '1,"y\n"\n' * n)),
    "csv: open quotes": (4000, lambda path, n: _csv_text(path, '1,"y\n' * n)),
    "csv: quotes that stay open": (4000, lambda path, n: _csv_text(path, 'x",",y\n' * n)),
    "csv: quotes that stay open beyond the limit": (
        4000,
        lambda path, n: _csv_text(path, 'x",",y\n' * n, max_record_bytes=10_000),
    ),
    "csv: bytes of a field": (4 << 20, lambda path, n: _csv_text(path, '"' + '""' * (n // 2) + '"\n')),
    "json: columns": (1000, lambda path, n: _json(path, [dict.fromkeys(_names(n), 1)] * 2)),
    "json: columns that are left out": (10_000, lambda path, n: _json(path, [dict.fromkeys(_names(n), 1)] * 2, columns=["c1"])),
    "json: lines": (4000, lambda path, n: _json(path, [{"a": 1}] * n)),
    "json: lines that are left out": (4000, lambda path, n: _json(path, [{"a": 1}, *[0] * n], on_error="skip")),
    "json: items": (200_000, lambda path, n: _json(path, [{"a": [1] * n}])),
    "json: bytes of a text": (8 << 20, lambda path, n: _json(path, [{"a": "x" * n}])),
    "json: depth": (16, lambda path, n: _json(path, [_nested(n)] * 500)),
    "json.gz: bytes of a text": (8 << 20, lambda path, n: _json(path.with_suffix(".gz"), [{"a": "x" * n}])),
    "json.zst: bytes of a text": (8 << 20, lambda path, n: _json(path.with_suffix(".zst"), [{"a": "x" * n}])),
    "parquet: columns": (1000, lambda path, n: _parquet(path, _table(n))),
    "parquet: chosen columns": (1000, lambda path, n: _parquet(path, _table(n), columns=_names(n))),
    "parquet: row groups": (500, lambda path, n: _parquet(path, _table(1, n), rows=1)),
    "arrow: columns": (1000, lambda path, n: _arrow(path, _table(n), pa.ipc.new_file)),
    "arrow: chosen columns": (1000, lambda path, n: _arrow(path, _table(n), pa.ipc.new_file, columns=_names(n))),
    "arrow: record batches": (500, lambda path, n: _arrow(path, _table(1, n), pa.ipc.new_file, rows=1)),
    "arrow: record batches of a stream": (500, lambda path, n: _arrow(path, _table(1, n), pa.ipc.new_stream, rows=1)),
    "mds: columns": (2000, lambda path, n: _mds(path, n, 2)),
    "mds: samples": (2000, lambda path, n: _mds(path, 1, n)),
    "mds: shards": (200, lambda path, n: _mds(path, 1, 2, shards=n)),
    "tfds: features": (1000, lambda path, n: _tfds(path, n, 2)),
    "tfds: examples": (20_000, lambda path, n: _tfds(path, 1, n)),
    "tfds: shards": (200, lambda path, n: _tfds(path, 1, 2, shards=n)),
    "tfrecord: records": (100_000, lambda path, n: _records(path, [b"x"] * n)),
    "tfrecord: bytes of a record": (16 << 20, lambda path, n: _records(path, [bytes(n)])),
    "tf.Example: features": (1000, lambda _, n: _examples(n)),
    "saved: columns": (1000, lambda path, n: _saved(path, n, 2)),
    "saved: rows": (200_000, lambda path, n: _saved(path, 1, n)),
    "saved, GZIP: rows": (200_000, lambda path, n: _saved(path, 1, n, compression="GZIP")),
    "cache: columns": (200, lambda path, n: _cached(path, n, 2)),
    "cache: rows": (100_000, lambda path, n: _cached(path, 1, n)),
}


def growth(name: str, folder: Path, rounds: int) -> tuple[float, float]:
    """Return the seconds of the smaller file, and how many times as long the larger one takes."""
    size, make = CASES[name]
    reads = [make(folder / f"{number}", size << number) for number in range(2)]
    for read in reads:
        read()
    taken: list[list[float]] = [[], []]
    for _ in range(rounds):
        for seconds, read in zip(taken, reads, strict=True):
            begin = time.process_time()
            read()
            seconds.append(time.process_time() - begin)
    small, large = map(statistics.median, taken)
    return small, large / small


def main() -> None:
    """Print a line for each dimension."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default="", help="only those whose names begin so")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for name in CASES:
        if name.startswith(options.cases):
            with tempfile.TemporaryDirectory() as folder:
                seconds, times = growth(name, Path(folder), options.rounds)
            print(f"file growth: {name}: {CASES[name][0]:,} take {seconds * 1e3:.1f} ms, twice as many {times:.2f} times as long")


if __name__ == "__main__":
    main()
