"""Streams a large Parquet set, and measures the most memory that the process takes: `ParquetDataset` in several pipelines.

Rows are a number and 256 float32. A file of ``--file`` GB is read as often as makes up ``--gigabytes``, under links with names of
their own. Each pipeline runs in a process of its own, which reads everything: row groups of 16 MB ("small"), and one row group for
the whole file ("large"); batches with `prefetch`, a shuffle of single rows in a buffer, one projected column, a filter, and URLs of
a local store with a cache of blocks that is smaller than the set. "baseline" is the memory of the process after its imports, "most"
the most beyond that. More than 500 MB is an error. With ``--page FOLDER``, the table is written to ``FOLDER/<date>-streaming.md``,
too. Run: ``python benchmarks/streaming.py [--gigabytes 20] [--file 1] [--only small large] [--page benchmarks/results]``.
"""

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from _figures import machine
from replicant.data import Dataset, ParquetDataset

WIDTH = 256
ROW = 4 * WIDTH + 8  # bytes
BATCH, PREFETCH, BUFFER = 256, 4, 50_000
SMALL = 16_000  # rows of a row group
LIMIT = 500  # MB
CACHE_BYTES = 1 << 30
SECONDS = 3600.0  # for one pipeline


class Local(fsspec.get_filesystem_class("file")):
    """A store whose objects are files, to be read as any store is."""

    protocol = "disk"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.removeprefix("disk://"))


def batches(rows: Dataset) -> Dataset:
    """Batches of rows, some of which are ready."""
    return rows.batch(BATCH).prefetch(PREFETCH)


Way = Callable[[list[str]], Dataset]
WAYS: dict[str, tuple[bool, Way]] = {  # whether row groups are small, and the pipeline
    "small": (True, lambda names: ParquetDataset(names, batch_rows=BATCH).prefetch(PREFETCH)),
    "large": (False, lambda names: ParquetDataset(names, batch_rows=BATCH).prefetch(PREFETCH)),
    "small, shuffled": (True, lambda names: batches(ParquetDataset(names).shuffle(BUFFER, seed=1))),
    "large, shuffled": (False, lambda names: batches(ParquetDataset(names).shuffle(BUFFER, seed=1))),
    "large, one column": (False, lambda names: ParquetDataset(names, ["x"], batch_rows=BATCH).prefetch(PREFETCH)),
    "large, filtered": (False, lambda names: ParquetDataset(names, batch_rows=BATCH, filters=[("y", ">=", 0)]).prefetch(PREFETCH)),
    "small, URLs": (True, lambda names: ParquetDataset([f"disk://{name}" for name in names], batch_rows=BATCH).prefetch(PREFETCH)),
    "large, URLs": (False, lambda names: ParquetDataset([f"disk://{name}" for name in names], batch_rows=BATCH).prefetch(PREFETCH)),
}


def written(path: Path, rows: int, group: int) -> None:
    """Write a file of so many rows. Row groups are made of small tables, so that this process needs little memory, too."""
    schema = pa.schema({"y": pa.int64(), "x": pa.list_(pa.float32(), WIDTH)})
    rng, piece = np.random.default_rng(0), 16_000
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, rows, group):
            count = min(group, rows - first)
            values = pa.chunked_array([pa.array(rng.random(piece * WIDTH, np.float32)) for _ in range(-(-count // piece))])
            flat = values.slice(0, count * WIDTH).combine_chunks()
            lists = pa.FixedSizeListArray.from_arrays(flat, WIDTH)
            writer.write_table(pa.table([pa.array(np.arange(first, first + count)), lists], schema), row_group_size=count)


def memory(field: str) -> float:
    """Megabytes of this process: VmRSS now, or VmHWM at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024 / 1e6


def streamed(way: str, names: list[str]) -> dict[str, Any]:
    """Read everything once. Runs in a process of its own."""
    fsspec.register_implementation("disk", Local)
    baseline, began, rows, total = memory("VmRSS"), time.perf_counter(), 0, 0
    for batch in WAYS[way][1](names):
        rows += len(batch["x"])
        total += int(batch["y"].sum()) if "y" in batch else 0
    most = memory("VmHWM") - baseline
    return {"rows": rows, "sum": total, "baseline": baseline, "most": most, "seconds": time.perf_counter() - began}


def apart(way: str, names: list[str], cache: str) -> dict[str, Any]:
    """Read everything in a process of its own."""
    command = [sys.executable, __file__, "--way", way, "--names", *names]
    environment = {**os.environ, "REPLICANT_REMOTE_CACHE": cache, "REPLICANT_REMOTE_CACHE_BYTES": str(CACHE_BYTES)}
    ran = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True, timeout=SECONDS)
    return json.loads(ran.stdout.splitlines()[-1])


def page(options: argparse.Namespace, lines: list[str]) -> str:
    """The results with how they were measured."""
    facts, table = machine(), "\n".join(lines)
    command = f"python benchmarks/streaming.py --gigabytes {options.gigabytes:g} --file {options.file:g}"
    where = f"{facts['cores']} cores ({facts['processor']}), Python {facts['python']}, PyArrow {pa.__version__}"
    groups = f"row groups of {SMALL * ROW // 10**6} MB (small) or of the whole file of {options.file:g} GB (large)"
    return f"""# Memory while {options.gigabytes:g} GB of Parquet are read, {dt.datetime.now(dt.UTC).date()}

`{command}`: rows of {WIDTH} float32 and a number, in
{groups}. Batches of {BATCH} with `prefetch({PREFETCH})`,
`shuffle({BUFFER:_})` of single rows ({BUFFER * ROW // 10**6} MB), blocks of URLs in a cache of {CACHE_BYTES >> 20} MiB.
{where}. "Most" is the most resident memory
of the process beyond its baseline, and at most {LIMIT} MB. Other work ran at the same time.

{table}
"""


def main() -> None:
    """Print a line for each pipeline."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--file", type=float, default=1)
    parser.add_argument("--only", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--page", type=Path)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(streamed(options.way, options.names)))
        return
    rows, count = int(options.file * 1e9 // ROW), max(1, round(options.gigabytes / options.file))
    lines = ["| | baseline, MB | most, MB | GB read | MB a second |", "|---|---|---|---|---|"]
    print("\n".join(lines))
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        names: dict[bool, list[str]] = {}
        for small in {WAYS[way][0] for way in options.only}:
            path = Path(folder) / f"{'small' if small else 'large'}.parquet"
            written(path, rows, SMALL if small else rows)
            links = [path.with_name(f"{i}-{path.name}") for i in range(count)]
            for link in links:
                link.hardlink_to(path)
            names[small] = [str(link) for link in links]
        for way in options.only:
            found = apart(way, names[WAYS[way][0]], f"{folder}/cache")
            assert found["rows"] == rows * count, f"{way}: {found['rows']} rows instead of {rows * count}"
            assert found["sum"] in (0, count * (rows * (rows - 1) // 2)), f"{way}: other rows"
            size = rows * count * ROW / 1e9
            lines.append(
                f"| {way} | {found['baseline']:.0f} | {found['most']:.0f} | {size:.1f} | {1000 * size / found['seconds']:.0f} |"
            )
            print(lines[-1], flush=True)
            failed += [way] if found["most"] > LIMIT else []
    if options.page:
        (options.page / f"{dt.datetime.now(dt.UTC).date()}-streaming.md").write_text(page(options, lines))
    if failed:
        raise SystemExit(f"More than {LIMIT} MB: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
