"""Reads the same examples from tar shards, Parquet, TFRecord and CSV, against webdataset and tf.data.

"tar": JPEG pictures of 64 x 64 with a label, decoded by the same function with Pillow, in batches and in their order: `TarDataset`
and webdataset, both in one thread of one process, and `TarDataset` once more with its threads (AUTOTUNE).
"rows": 8 numbers and a label per row, in batches: `ParquetDataset`, tf.data over TFRecord (parsed by batches) and over CSV
(`make_csv_dataset`, one pass). Rounds alternate, after one that does not count. Printed are examples per second by the clock and by
processor time, and the medians of the ratios of each round with the smallest and the largest. With ``--page FOLDER``, they are
written to ``FOLDER/<date>-shards.md``, too. Needs `pip install webdataset tensorflow pillow pyarrow`. Run:
``python benchmarks/shards.py [--pictures 4000] [--rows 200000] [--rounds 5] [--page benchmarks/results]``.
"""

import argparse
import datetime as dt
import importlib
import io
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from PIL import Image

from _figures import machine
from replicant.data import AUTOTUNE, ParquetDataset, TarDataset, TFRecordWriter

tf: Any = importlib.import_module("tensorflow")
webdataset: Any = importlib.import_module("webdataset")

SHARDS = 4
BATCH = 128
COLUMNS = [f"x{i}" for i in range(8)]


def pictures(folder: Path, count: int) -> list[str]:
    """Write shards with so many pictures, and return their paths."""
    rng = np.random.default_rng(0)
    paths = [str(folder / f"{i}.tar") for i in range(SHARDS)]
    for number, path in enumerate(paths):
        with tarfile.open(path, "w") as archive:
            for i in range(number, count, SHARDS):
                file = io.BytesIO()
                Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(file, "JPEG")
                for name, data in ((f"{i:06d}.jpg", file.getvalue()), (f"{i:06d}.cls", str(i % 10).encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return paths


def rows(folder: Path, count: int) -> None:
    """Write the same numbers in three formats."""
    rng = np.random.default_rng(0)
    data = {name: rng.standard_normal(count, dtype=np.float32) for name in COLUMNS} | {"y": rng.integers(0, 10, count)}
    table = pa.table(data)
    pq.write_table(table, folder / "rows.parquet", row_group_size=20_000)
    pyarrow.csv.write_csv(table, folder / "rows.csv")
    xs = np.stack([data[name] for name in COLUMNS], axis=1)
    with TFRecordWriter(folder / "rows.tfrecord") as writer:
        for x, y in zip(xs, data["y"], strict=True):
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def decoded(data: bytes) -> np.ndarray:
    """The picture in the bytes of a JPEG file."""
    return np.asarray(Image.open(io.BytesIO(data)))


def our_tar(paths: list[str], threads: int | None = None) -> int:
    """`TarDataset`."""
    samples = TarDataset(paths).map(lambda each: (decoded(each["jpg"]), np.int64(int(each["cls"]))), num_parallel_calls=threads)
    return sum(len(y) for _, y in samples.batch(BATCH))


def their_tar(paths: list[str]) -> int:
    """The package webdataset."""
    samples = webdataset.WebDataset(paths, shardshuffle=False, empty_check=False)
    made = samples.to_tuple("jpg", "cls").map_tuple(decoded, int).batched(BATCH)
    return sum(len(y) for _, y in made)


def our_rows(folder: Path) -> int:
    """`ParquetDataset`."""
    return sum(len(batch["y"]) for batch in ParquetDataset(folder / "rows.parquet", batch_rows=BATCH))


def their_records(folder: Path) -> int:
    """tf.data over TFRecord, parsed by batches."""
    spec = {"x": tf.io.FixedLenFeature([8], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
    parsed = tf.data.TFRecordDataset(str(folder / "rows.tfrecord")).batch(BATCH)
    parsed = parsed.map(lambda texts: tf.io.parse_example(texts, spec), num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
    return sum(len(batch["y"]) for batch in parsed.as_numpy_iterator())


def their_csv(folder: Path) -> int:
    """tf.data over CSV."""
    made = tf.data.experimental.make_csv_dataset(str(folder / "rows.csv"), BATCH, num_epochs=1, shuffle=False, label_name="y")
    return sum(len(y) for _, y in made.as_numpy_iterator())


def measured(read: Callable[[], int], count: int) -> tuple[float, float]:
    """Return the seconds of one pass by the clock and of processor time."""
    began = time.perf_counter(), time.process_time()
    found = read()
    assert found == count, f"{found} examples instead of {count}"
    return time.perf_counter() - began[0], time.process_time() - began[1]


Times = dict[str, list[tuple[float, float]]]  # of each way: its rounds, by the clock and of processor time


def alternated(ways: dict[str, Callable[[], int]], count: int, rounds: int) -> Times:
    """Measure rounds by turns, after one that does not count."""
    times: Times = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, read in ways.items():
            seconds = measured(read, count)
            times[way] += [seconds] if turn else []
            print(f"{f'round {turn}' if turn else 'before'}: {way:22} {seconds[0]:7.3f} s", flush=True)
    return times


def compared(mine: Sequence[tuple[float, float]], its: Sequence[tuple[float, float]], kind: int) -> str:
    """How many times as fast mine is."""
    ratios = sorted(b[kind] / a[kind] for a, b in zip(mine, its, strict=True))
    return f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"


def table(counts: dict[str, int], times: Times, pairs: Sequence[tuple[str, str]]) -> str:
    """The figures in Markdown."""
    lines = ["| | a second | a processor second |", "|---|---|---|"]
    for way, rounds in times.items():
        speeds = [counts[way] / statistics.median(each[kind] for each in rounds) for kind in (0, 1)]
        lines.append(f"| {way} | {speeds[0]:,.0f} | {speeds[1]:,.0f} |")
    lines += ["", "| how many times as fast | by the clock | by processor time |", "|---|---|---|"]
    lines += [f"| {a} / {b} | {compared(times[a], times[b], 0)} | {compared(times[a], times[b], 1)} |" for a, b in pairs]
    return "\n".join(lines)


def page(options: argparse.Namespace, today: dt.date, load: float, figures: str) -> str:
    """The results with how they were measured. `load` is that before the first round."""
    facts, versions = machine(), f"webdataset {webdataset.__version__}, TensorFlow {tf.__version__}"
    command = f"python benchmarks/shards.py --pictures {options.pictures} --rows {options.rows} --rounds {options.rounds}"
    where = f"{facts['cores']} cores ({facts['processor']}, load {load:.1f} before the first round), Python {facts['python']}"
    return f"""# Tar shards and rows: examples per second, {today}

`{command}`: JPEG pictures of 64 x 64 in {SHARDS} tar files, decoded by
Pillow; rows of {len(COLUMNS)} numbers and a label. Batches of {BATCH}. `TarDataset` and webdataset run in one thread.
{where}, {versions}.
Medians of {options.rounds} alternating rounds; ratios are of times within a round, with the smallest and the largest.

{figures}
"""


def main() -> None:
    """Print each round and a table, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = pictures(folder, options.pictures)
        rows(folder, options.rows)
        tar = {
            "TarDataset": lambda: our_tar(paths),
            "webdataset": lambda: their_tar(paths),
            "TarDataset, threads": lambda: our_tar(paths, AUTOTUNE),
        }
        columns = {
            "ParquetDataset": lambda: our_rows(folder),
            "tf.data, TFRecord": lambda: their_records(folder),
            "tf.data, CSV": lambda: their_csv(folder),
        }
        times = alternated(tar, options.pictures, options.rounds) | alternated(columns, options.rows, options.rounds)
    counts = {way: options.pictures if way in tar else options.rows for way in times}
    pairs = [("TarDataset", "webdataset"), ("TarDataset, threads", "webdataset")]
    pairs += [("ParquetDataset", each) for each in ("tf.data, TFRecord", "tf.data, CSV")]
    figures = table(counts, times, pairs)
    print(f"\n{figures}")
    if options.page:
        today = dt.datetime.now(dt.UTC).date()
        (options.page / f"{today}-shards.md").write_text(page(options, today, load, figures))


if __name__ == "__main__":
    main()
