"""Checkpoints at an S3 server on this machine, and reading from it, against s3fs alone.

The server is moto's, in a process of its own. Rounds alternate, after one that does not count. "upload" is `put_file` of s3fs, in
parts, with a local file of this size. "held" is how long a save in the background keeps the next step waiting. "ranges" reads an
object with as many requests at a time as `TFRecordDataset` makes, and keeps nothing. "columns" reads half of the columns of a
Parquet dataset of eight files, in batches. "chunks" reads the bytes of these columns in parallel ranges, and decodes nothing;
"arrow" reads them with Arrow and s3fs alone.
Run: ``python benchmarks/stores.py [--megabytes 400] [--rounds 5]``.
"""

import argparse
import concurrent.futures
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import fsspec.config as fsspec_config
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import replicant
from replicant.data import ParquetDataset, TFRecordDataset, TFRecordWriter

ASYNC = replicant.CheckpointOptions(enable_async=True)
ARRAYS = 25
RECORD = 100_000  # bytes
COLUMNS, FILES = "abcdefgh", 8
RANGE, AT_ONCE = 4 << 20, 4  # of the reader in `replicant.storage`


def started(port: int) -> subprocess.Popen:
    """Start the server, and wait until it answers."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return server
        time.sleep(0.1)
    server.kill()
    raise SystemExit(f"The server did not answer at port {port} within 60 s.")


def free_port() -> int:
    """Return a port that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def timed(action: Callable[[], Any]) -> float:
    """Return the seconds that `action` takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Ways:
    """What is measured, each as a function that returns seconds."""

    def __init__(self, system: Any, folder: Path, megabytes: int):
        self.system, self.folder, self.size = system, folder, megabytes * 10**6
        rng = np.random.default_rng(0)
        count = self.size // ARRAYS // 4
        arrays = {f"array {i}": jax.numpy.asarray(rng.standard_normal(count, np.float32)) for i in range(ARRAYS)}
        self.checkpoint = replicant.Checkpoint(**{name.replace(" ", "_"): value for name, value in arrays.items()})
        self.file = folder / "bytes"
        self.file.write_bytes(rng.bytes(self.size))
        with TFRecordWriter(folder / "records") as writer:
            for _ in range(self.size // RECORD):
                writer.write(rng.bytes(RECORD))
        system.mkdir("bench")
        system.put_file(str(folder / "records"), "bench/records")
        rows = self.size // (2 * len(COLUMNS)) // 8
        columns = {f"{name}{half}": rng.standard_normal(rows) for name in COLUMNS for half in range(2)}
        for i in range(FILES):
            part = pa.table(columns).slice(i * (rows // FILES), rows // FILES)
            pq.write_table(part, folder / "table", row_group_size=rows, compression="none", use_dictionary=False)
            system.put_file(str(folder / "table"), f"bench/table{i}")
        self.rows = rows // FILES * FILES

    def upload(self) -> float:
        """A file, with the client's own multipart upload."""
        seconds = timed(lambda: self.system.put_file(str(self.file), "bench/bytes"))
        self.system.rm("bench/bytes")
        return seconds

    def save(self) -> float:
        """A checkpoint, until it counts."""
        seconds = timed(lambda: self.checkpoint.write("s3://bench/saved"))
        self.system.rm("bench/saved", recursive=True)
        return seconds

    def held(self) -> float:
        """How long a save in the background holds the step."""
        with replicant.CheckpointManager(self.checkpoint, "s3://bench/held", 1) as manager:
            seconds = timed(lambda: manager.save(options=ASYNC))
            manager.sync()
        self.system.rm("bench/held", recursive=True)
        return seconds

    def ranges(self) -> float:
        """An object in ranges, in parallel."""
        size = self.system.size("bench/records")
        starts = range(0, size, RANGE)

        def read() -> None:
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                pieces = pool.map(
                    lambda start: self.system.cat_file("bench/records", start=start, end=min(start + RANGE, size)), starts
                )
                assert sum(map(len, pieces)) == size

        return timed(read)

    def dataset(self) -> float:
        """The same object, as records whose checksums are compared."""

        def read() -> None:
            assert sum(1 for _ in TFRecordDataset("s3://bench/records")) == self.size // RECORD

        return timed(read)

    def arrow(self) -> float:
        """Half of the columns of a Parquet file, row group by row group, with Arrow's own reader through s3fs."""
        names = [f"{name}0" for name in COLUMNS]

        def read() -> None:
            rows = 0
            for i in range(FILES):
                with self.system.open(f"bench/table{i}") as file:
                    rows += len(pq.ParquetFile(file, pre_buffer=True).read(names))
            assert rows == self.rows

        return timed(read)

    def chunks(self) -> float:
        """The bytes of half of the columns of these files, in parallel ranges."""

        def ranges_of(path: str) -> list[tuple[str, int, int]]:
            with self.system.open(path) as file:
                group = pq.ParquetFile(file).metadata.row_group(0)
            found = [group.column(i) for i in range(group.num_columns)]
            return [
                (path, chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size)
                for chunk in found
                if chunk.path_in_schema.endswith("0")
            ]

        def read() -> None:
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                for i in range(FILES):
                    pieces = pool.map(
                        lambda each: self.system.cat_file(each[0], start=each[1], end=each[2]), ranges_of(f"bench/table{i}")
                    )
                    assert sum(map(len, pieces)) >= self.rows // FILES * 8 * len(COLUMNS)

        return timed(read)

    def columns(self) -> float:
        """Half of the columns of that file, in batches of 1024 rows."""
        names = [f"{name}0" for name in COLUMNS]

        def read() -> None:
            dataset = ParquetDataset([f"s3://bench/table{i}" for i in range(FILES)], columns=names, batch_rows=1024)
            assert sum(len(batch[names[0]]) for batch in dataset) == self.rows

        return timed(read)


def main() -> None:
    """Print the medians and the ratios of each round."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    port = free_port()
    server = started(port)
    try:
        storage = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "key", "secret": "secret", "use_listings_cache": False}
        fsspec_config.conf["s3"] = storage
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
        with tempfile.TemporaryDirectory() as folder:
            ways = Ways(fsspec.filesystem("s3", **storage), Path(folder), options.megabytes)
            names = ["upload", "save", "held", "ranges", "dataset", "chunks", "arrow", "columns"]
            rounds = [{name: getattr(ways, name)() for name in names} for _ in range(options.rounds + 1)][1:]
    finally:
        server.kill()
        server.wait()
    for name in names:
        print(f"{name:13} {statistics.median(each[name] for each in rounds):8.3f} s")
    for name, peer in (("save", "upload"), ("dataset", "ranges"), ("columns", "chunks"), ("columns", "arrow")):
        ratios = sorted(each[name] / each[peer] for each in rounds)
        print(f"{name} / {peer}: {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]")


if __name__ == "__main__":
    main()
