"""Compares Replicant's datasets with tf.data and Grain on the same data, and measures how long training waits for input.

All contenders of a case read the same records, which is checked first. Then rounds of one epoch each alternate, and the medians are
printed. Peers that are not installed are skipped. Run: ``python benchmarks/input.py [--rounds 7] [--case arrays]``. With
``--memory``, only the memory of an epoch over a file of 2 GB is measured.
"""

import argparse
import functools
import importlib
import importlib.util
import io
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

import replicant
from replicant.data import (
    AUTOTUNE,
    Dataset,
    FixedLenFeature,
    TFRecordDataset,
    TFRecordWriter,
    encode_example,
    parse_example,
    parse_single_example,
)

OURS, TF, GRAIN = "replicant", "tensorflow", "grain"
BATCH, IMAGE_BATCH = 256, 64
NUM_ROWS, NUM_RECORDS = 60_000, 100_000
NUM_IMAGES = {64: 4_000, 224: 800}  # by their size in pixels
SCALE = np.float32(1 / 255)
TRAIN_STEPS, REPLICAS, PER_REPLICA = 60, 2, 64
FILE_BYTES, RECORD_BYTES, LIMIT_MB = 2_000_000_000, 100_000, 600


class Contender(NamedTuple):
    """One way to read the records of a case: the library, the form, and a function that begins a new epoch of batches."""

    library: str
    form: str
    epoch: Callable[[], Iterable[Any]]


class Case(NamedTuple):
    """The ways to read the same records, and how many times as fast as each library the first way, Replicant's, must be."""

    name: str
    contenders: list[Contender]
    goals: dict[str, float]


@functools.cache
def peer(name: str) -> Any:
    """Return a library. If it is not installed, print this once and return None."""
    if importlib.util.find_spec(name) is None:
        print(f"{name} is not installed: skipped")
        return None
    return importlib.import_module(name)


# Arrays


def normalised(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert images to float32 from 0 to 1."""
    return np.multiply(images, SCALE, dtype=np.float32), labels


def arrays_case(_: Path) -> list[Case]:
    """Make a case of images and labels in memory, which are shuffled, batched and normalized."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (NUM_ROWS, 28, 28, 1), dtype=np.uint8)
    labels = rng.integers(0, 10, NUM_ROWS)
    own = Dataset.from_tensor_slices((images, labels)).shuffle(NUM_ROWS).batch(BATCH).map(normalised)
    contenders = [
        Contender(OURS, "batch, map", lambda: own),
        Contender(OURS, "batch, map, prefetch", lambda: own.prefetch(2)),
    ]
    if tf := peer(TF):
        source, auto = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(NUM_ROWS), tf.data.AUTOTUNE

        def scaled(x: Any, y: Any) -> Any:
            return tf.cast(x, tf.float32) * SCALE, y

        batched = source.batch(BATCH).map(scaled, auto).prefetch(auto)
        parallel = source.batch(BATCH, num_parallel_calls=auto).map(scaled, auto).prefetch(auto)
        mapped = source.map(scaled, auto).batch(BATCH).prefetch(auto)
        contenders += [
            Contender(TF, "batch, map(AUTOTUNE), prefetch", lambda: batched),
            Contender(TF, "batch(AUTOTUNE), map(AUTOTUNE), prefetch", lambda: parallel),
            Contender(TF, "map(AUTOTUNE), batch, prefetch", lambda: mapped),
        ]
    if grain := peer(GRAIN):
        rows = grain.MapDataset.source(Rows(images, labels)).shuffle(seed=1)
        batches = rows.batch(BATCH).map(lambda batch: normalised(*batch))
        each = rows.map(lambda row: normalised(*row)).batch(BATCH)
        few = grain.ReadOptions(num_threads=2)
        contenders += [
            Contender(GRAIN, "per record: batch, map", batches.to_iter_dataset),
            Contender(GRAIN, "per record: batch, map, 2 read threads", lambda: batches.to_iter_dataset(few)),
            Contender(GRAIN, "per record: map, batch", each.to_iter_dataset),
        ]
    return [Case(f"arrays: {NUM_ROWS:,} x 28x28x1", contenders, {TF: 5, GRAIN: 10})]


class Rows:
    """Arrays as a random-access source of records."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)


# Files of records


def records_case(folder: Path) -> list[Case]:
    """Make cases of a TFRecord file of Examples, with image bytes and a label, parsed one by one and in batches."""
    path, rng = str(folder / "images.tfrecord"), np.random.default_rng(0)
    with TFRecordWriter(path) as writer:
        for i in range(NUM_RECORDS):
            writer.write(encode_example({"image": rng.bytes(784), "label": i % 10}))
    features = {"image": FixedLenFeature((), str), "label": FixedLenFeature((), np.int64)}
    own = TFRecordDataset(path)
    batched = own.batch(BATCH).map(lambda records: parse_example(records, features))
    single = own.map(lambda record: parse_single_example(record, features)).batch(BATCH)
    contenders = [
        Contender(OURS, "batch, parse_example", lambda: batched),
        Contender(OURS, "batch, parse_example, prefetch", lambda: batched.prefetch(2)),
        Contender(OURS, "parse_single_example, batch", lambda: single),
    ]
    if tf := peer(TF):
        wanted = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}
        source, auto = tf.data.TFRecordDataset(path), tf.data.AUTOTUNE

        def parsed(records: Any) -> Any:
            return tf.io.parse_example(records, wanted)

        its = source.batch(BATCH).map(parsed, auto).prefetch(auto)
        its_parallel = source.batch(BATCH, num_parallel_calls=auto).map(parsed, auto).prefetch(auto)
        its_single = source.map(lambda record: tf.io.parse_single_example(record, wanted), auto).batch(BATCH).prefetch(auto)
        contenders += [
            Contender(TF, "batch, parse_example(AUTOTUNE), prefetch", lambda: its),
            Contender(TF, "batch(AUTOTUNE), parse_example(AUTOTUNE), prefetch", lambda: its_parallel),
            Contender(TF, "parse_single_example(AUTOTUNE), batch, prefetch", lambda: its_single),
        ]
    return [Case(f"TFRecord: {NUM_RECORDS:,} x (784 bytes, label)", contenders, {TF: 1.2})]


# Images


def jpeg_case(_: Path) -> list[Case]:
    """Make cases of JPEG files in memory, of small and usual sizes."""
    if peer("PIL") is None:
        return []
    return [jpegs_of(size, count) for size, count in NUM_IMAGES.items()]


def jpegs_of(size: int, count: int) -> Case:
    """Make a case of square images with `size` pixels a side, which are smooth with some noise, at quality 90."""
    image, rng = importlib.import_module("PIL.Image"), np.random.default_rng(0)

    def encoded() -> bytes:
        coarse = image.fromarray(rng.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((size, size)), np.int64) + rng.integers(-8, 9, (size, size, 3))
        file = io.BytesIO()
        image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        return file.getvalue()

    def by_pillow(data: bytes) -> np.ndarray:  # its discrete cosine transform is slower, but more exact
        return np.asarray(image.open(io.BytesIO(data), formats=["JPEG"]))

    def by_simplejpeg(data: bytes) -> np.ndarray:  # with TensorFlow's settings, and so with the same pixels
        return simplejpeg.decode_jpeg(data, "RGB", fastdct=True)

    files = np.array([encoded() for _ in range(count)], object)
    source = Dataset.from_tensor_slices(files)
    simplejpeg, contenders = peer("simplejpeg"), []
    decoders = ({"simplejpeg": by_simplejpeg} if simplejpeg else {}) | {"Pillow": by_pillow}
    for name, decoded in decoders.items():
        threads = source.map(decoded, num_parallel_calls=AUTOTUNE).batch(IMAGE_BATCH)
        plain = source.map(decoded).batch(IMAGE_BATCH)
        contenders += [
            Contender(OURS, f"map({name}, AUTOTUNE), batch", threads.__iter__),
            Contender(OURS, f"map({name}), batch", plain.__iter__),
        ]
    if tf := peer(TF):
        its = tf.data.Dataset.from_tensor_slices(files.tolist()).map(lambda file: tf.io.decode_jpeg(file, 3), tf.data.AUTOTUNE)
        its = its.batch(IMAGE_BATCH).prefetch(tf.data.AUTOTUNE)
        contenders.append(Contender(TF, "map(decode_jpeg, AUTOTUNE), batch, prefetch", lambda: its))
    return Case(f"JPEG: {count:,} x {size}x{size}x3", contenders, {TF: 0.8})


# Measuring and printing


def fingerprint(batches: Iterable[Any]) -> tuple[int, float]:
    """Return the number of rows, and the sum of everything in them. All contenders must agree on both."""
    rows, total = 0, 0.0
    for batch in batches:
        leaves = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple) else (batch,)
        arrays = [np.asarray(leaf) for leaf in leaves]
        total += sum(sum(map(len, a)) if a.dtype == object else float(a.sum(dtype=np.float64)) for a in arrays)
        rows += len(arrays[0])
    return rows, total


def check(case: Case) -> int:
    """Return the number of rows of an epoch, and end the program if contenders differ."""
    rows, total = fingerprint(case.contenders[0].epoch())
    for contender in case.contenders[1:]:
        its_rows, its_total = fingerprint(contender.epoch())
        if its_rows != rows or abs(its_total - total) > 1e-2 * total:  # JPEG decoders may round differently
            sys.exit(f"{case.name}: {contender} reads {its_rows} rows with sum {its_total}, not {rows} with {total}")
    return rows


def measure(case: Case, rounds: int) -> list[list[float]]:
    """Return the seconds of each contender's epochs, round by round."""
    times: list[list[float]] = [[] for _ in case.contenders]
    for _ in range(rounds):
        for contender, seconds in zip(case.contenders, times, strict=True):
            start = time.perf_counter()
            for _ in contender.epoch():
                pass
            seconds.append(time.perf_counter() - start)
    return times


def report(case: Case, rounds: int) -> None:
    """Measure a case, and print its table, with ratios to the first contender by rounds and for the fastest rounds."""
    rows, times = check(case), measure(case, rounds)
    ratios = [statistics.median(a / b for a, b in zip(seconds, times[0], strict=True)) for seconds in times]
    print(f"\n{case.name}\n\n| library | pipeline | ms/epoch | records/s | time / first | fastest / fastest |")
    print("|---|---|---|---|---|---|")
    for contender, seconds, ratio in zip(case.contenders, times, ratios, strict=True):
        median, fastest = statistics.median(seconds), min(seconds) / min(times[0])
        figures = f"{median * 1e3:.0f} | {rows / median:,.0f} | {ratio:.2f} | {fastest:.2f}"
        print(f"| {contender.library} | {contender.form} | {figures} |")
    print()
    for library, goal in case.goals.items():
        its = [ratio for contender, ratio in zip(case.contenders, ratios, strict=True) if contender.library == library]
        if its:
            verdict = "reached" if min(its) >= goal else "missed"
            print(f"the first is {min(its):.2f} times as fast as the fastest form of {library}; goal {goal:g}: {verdict}")


# Training


def report_training(rounds: int) -> None:
    """Print the share of the time for which training a CNN waits for input, from the iterator's own figures."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from _datasets import ImageData
    from custom_training import build_steps, create_parts, distribute

    rng = np.random.default_rng(0)
    images, labels = rng.random((NUM_ROWS, 28, 28, 1), np.float32), rng.integers(0, 10, NUM_ROWS)
    data = ImageData(images, labels, images[:1], labels[:1])
    strategy = replicant.MirroredStrategy(replicant.list_devices()[:REPLICAS])
    inputs = distribute(strategy, data, REPLICAS * PER_REPLICA)
    steps = build_steps(strategy, create_parts(strategy), inputs.global_batch_size)
    shares, milliseconds = [], []
    for turn in range(rounds + 1):  # the first one compiles
        total = 0.0
        with iter(inputs.train) as iterator:
            for _ in range(TRAIN_STEPS):
                total += float(steps.train(next(iterator)))
            stats = iterator.stats()
        if turn:
            shares.append(stats.share_waiting)
            milliseconds.append(stats.seconds / stats.num_steps * 1e3)
    share = statistics.median(shares)
    print(
        f"\ntraining: CNN of the examples, {REPLICAS} x {PER_REPLICA} rows, {TRAIN_STEPS} steps after a cold start of the input\n"
    )
    print("| ms/step | waiting for input |\n|---|---|")
    print(f"| {statistics.median(milliseconds):.1f} | {share:.2%} |")
    print(f"\ngoal below 3 %: {'reached' if share < 0.03 else 'missed'}")


# Memory


def status_mb(field: str) -> float:
    """Return a size of this process from Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def report_memory(folder: Path) -> None:
    """Print by how much an epoch over a distributed, shuffled and parsed file raises the peak memory."""
    path, block = folder / "large.tfrecord", np.random.default_rng(0).bytes(RECORD_BYTES)
    with TFRecordWriter(path) as writer:
        for i in range(FILE_BYTES // RECORD_BYTES):
            writer.write(encode_example({"image": block, "label": i}))
    strategy = replicant.MirroredStrategy(replicant.list_devices()[:REPLICAS])
    features = {"image": FixedLenFeature((), str), "label": FixedLenFeature((), np.int64)}

    def decoded(records: Any) -> tuple[np.ndarray, np.ndarray]:
        parsed = parse_example(records, features)
        return np.stack([np.frombuffer(image, np.uint8) for image in parsed["image"]]), parsed["label"]

    dataset = TFRecordDataset(path).shuffle(1_000, seed=1).batch(IMAGE_BATCH).map(decoded)
    _ = list(strategy.experimental_distribute_dataset(dataset.take(1)))  # loads what is loaded once
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    baseline, rows, start = status_mb("VmRSS"), 0, time.perf_counter()
    for images, _ in strategy.experimental_distribute_dataset(dataset):
        rows += sum(len(share) for share in strategy.experimental_local_results(images))
    seconds, peak = time.perf_counter() - start, status_mb("VmHWM") - baseline
    print("\nmemory: an epoch over one TFRecord file, shuffle(1000), batch, parse, on the devices\n")
    print("| file MB | records | seconds | MB above baseline |\n|---|---|---|---|")
    print(f"| {path.stat().st_size / 1e6:,.0f} | {rows:,} | {seconds:.1f} | {peak:.0f} |")
    print(f"\ngoal below {LIMIT_MB} MB: {'reached' if peak < LIMIT_MB else 'missed'}")


CASES: dict[str, Callable[[Path], list[Case]]] = {"arrays": arrays_case, "records": records_case, "jpeg": jpeg_case}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Replicant's input against tf.data and Grain.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--case", choices=(*CASES, "training", "all"), default="all")
    parser.add_argument("--memory", action="store_true", help="measure only the peak memory for a file of 2 GB (Linux)")
    return parser.parse_args()


def main() -> None:
    """Measure, and print the tables."""
    args = parse()
    replicant.set_virtual_devices(REPLICAS)
    print(f"{Path(__file__).name}: {os.cpu_count()} cores, Python {platform.python_version()}, medians of {args.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        if args.memory:
            report_memory(Path(folder))
            return
        for name, cases in CASES.items():
            for case in cases(Path(folder)) if args.case in {name, "all"} else []:
                report(case, args.rounds)
    if args.case in {"training", "all"}:
        report_training(args.rounds)


if __name__ == "__main__":
    main()
