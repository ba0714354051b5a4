"""Reads files once to warm up and once that counts, and prints the processor time: reads_shards.py READER FOLDER SIZE.

A reader is a format and a library, such as ``litdata by replicant``. ``write FORMAT`` in its place writes the files.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

NUM_RECORDS, NUM_SAMPLES, NUM_TOKENS = 100_000, 40_000, 1 << 26
RECORD_BYTES, WIDTH, LENGTH = 256, 64, 1024

# How many examples there are in something that a reader yields, and what is read.
Reading = tuple[Callable[[Any], int], Callable[[], Iterable[Any]]]


def samples() -> Iterable[dict[str, Any]]:
    """Yield small samples of numbers and a text."""
    random = np.random.default_rng(0)
    for number in range(NUM_SAMPLES):
        yield {"text": f"text {number}", "x": random.standard_normal(WIDTH, dtype=np.float32), "y": number % 10}


def write_array_record(folder: Path) -> None:
    """Write records of random bytes, each of which can be read by itself."""
    random = np.random.default_rng(0)
    module: Any = importlib.import_module("array_record.python.array_record_module")
    for shard in range(4):
        writer = module.ArrayRecordWriter(str(folder / f"{shard}.array_record"), "group_size:1")
        for _ in range(NUM_RECORDS // 4):
            writer.write(random.bytes(RECORD_BYTES))
        writer.close()


def write_litdata(folder: Path) -> None:
    """Write chunks, as `litdata.optimize` does."""
    litdata: Any = importlib.import_module("litdata.streaming.cache")
    cache = litdata.Cache(str(folder), chunk_bytes="4MB")
    for number, sample in enumerate(samples()):
        cache[number] = sample
    cache.done()
    cache.merge()


def write_mds(folder: Path) -> None:
    """Write shards, as MosaicML's streaming does."""
    streaming: Any = importlib.import_module("streaming")
    columns = {"text": "str", "x": f"ndarray:float32:{WIDTH}", "y": "int"}
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=1 << 22) as out:
        for sample in samples():
            out.write(sample)


def write_tokens(folder: Path) -> None:
    """Write a file as nanoGPT does."""
    np.random.default_rng(0).integers(0, 50_257, NUM_TOKENS, dtype=np.uint16).tofile(folder / "train.bin")


def array_record_by_replicant(folder: Path, size: int) -> Reading:
    """In a random order, in batches."""
    data = importlib.import_module("replicant.data")
    dataset = data.ArrayRecordDataset(sorted(folder.glob("*.array_record"))).global_shuffle(seed=1).batch(size)
    return len, lambda: dataset


def array_record_by_grain(folder: Path, size: int) -> Reading:
    """With Grain's `DataLoader` in this process, in a random order, in batches."""
    grain: Any = importlib.import_module("grain.python")
    source = grain.ArrayRecordDataSource([str(path) for path in sorted(folder.glob("*.array_record"))])
    sampler = grain.IndexSampler(len(source), grain.NoSharding(), shuffle=True, num_epochs=1, seed=1)
    loader = grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(size)], worker_count=0)
    return len, lambda: loader


def _by_replicant(reader: str, folder: Path, size: int) -> Reading:
    dataset = getattr(importlib.import_module("replicant.data"), reader)(folder)
    if size == 1:
        return (lambda _: 1), lambda: dataset
    return (lambda batch: len(batch["y"])), lambda: dataset.batch(size)


def litdata_by_replicant(folder: Path, size: int) -> Reading:
    """In the order of the chunks."""
    return _by_replicant("LitDataDataset", folder, size)


def mds_by_replicant(folder: Path, size: int) -> Reading:
    """In the order of the shards."""
    return _by_replicant("MDSDataset", folder, size)


def litdata_by_litdata(folder: Path, size: int) -> Reading:
    """In the same order, one by one, which is less work than batches."""
    del size
    litdata: Any = importlib.import_module("litdata")
    dataset = litdata.StreamingDataset(str(folder))
    return (lambda _: 1), lambda: dataset


def mds_by_streaming(folder: Path, size: int) -> Reading:
    """In the same order, one by one, which is less work than batches."""
    streaming: Any = importlib.import_module("streaming")
    dataset = streaming.StreamingDataset(local=str(folder), shuffle=False, batch_size=size)
    return (lambda _: 1), lambda: dataset


def tokens_by_replicant(folder: Path, size: int) -> Reading:
    """Windows in order, in batches."""
    dataset = importlib.import_module("replicant.data").TokenDataset(folder / "train.bin", LENGTH, dtype="uint16").batch(size)
    return len, lambda: dataset


def shuffled_tokens_by_replicant(folder: Path, size: int) -> Reading:
    """Windows in a random order, in batches."""
    data = importlib.import_module("replicant.data")
    dataset = data.TokenDataset(folder / "train.bin", LENGTH, dtype="uint16").global_shuffle(seed=1).batch(size)
    return len, lambda: dataset


def tokens_by_memmap(folder: Path, size: int) -> Reading:
    """Windows in order, in batches that are copied out of the map."""

    def read() -> Iterable[np.ndarray]:
        ids = np.memmap(folder / "train.bin", np.uint16, "r")
        for begin in range(0, len(ids), size * LENGTH):
            yield np.array(ids[begin : begin + size * LENGTH]).reshape(-1, LENGTH)

    return len, read


def shuffled_tokens_by_memmap(folder: Path, size: int) -> Reading:
    """Windows in a random order, as nanoGPT makes batches: the map is made anew for each, or it would keep what it has read."""

    def read() -> Iterable[np.ndarray]:
        order = np.random.default_rng(0).permutation(NUM_TOKENS // LENGTH)
        for begin in range(0, len(order), size):
            ids = np.memmap(folder / "train.bin", np.uint16, "r")
            yield np.stack([ids[number * LENGTH : (number + 1) * LENGTH] for number in order[begin : begin + size].tolist()])

    return len, read


def main() -> None:
    """Write files, or print the number of examples and the seconds as JSON."""
    reader, folder, size = sys.argv[1:]
    if reader.startswith("write "):
        globals()[reader.replace(" ", "_")](Path(folder))
        return
    count_of, read = globals()[reader.replace(" ", "_")](Path(folder), int(size))
    taken = {}
    for _ in range(2):
        begin = time.process_time()
        count = sum(map(count_of, read()))
        taken = {"examples": count, "seconds": time.process_time() - begin}
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
