"""kill -9 in the middle of a pass: the positions that were saved lead to exactly the rest, in a new process."""

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replicant.data import TFRecordWriter, encode_example

SECONDS = 120.0
NUM_FILES, NUM_RECORDS = 4, 50

# Reads batches from where the newest position says, and after each saves the position and appends what it read. The
# journal is cut where the position was saved, as a checkpoint of the model would be.
PROGRAM = """
import json, os, pathlib, sys, time
import numpy as np
import replicant
replicant.set_virtual_devices(2)
from replicant.data import AUTOTUNE, Dataset, FixedLenFeature, TFRecordDataset, parse_example

folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
features = {"x": FixedLenFeature((), "int64")}
files = Dataset.list_files(str(folder / "*.tfrecord"), shuffle=True, seed=1)
dataset = (
    files.interleave(TFRecordDataset, cycle_length=2, block_length=3, num_parallel_calls=2)
    .shuffle(40, seed=2)
    .batch(7)
    .map(lambda records: parse_example(records, features)["x"], num_parallel_calls=AUTOTUNE)
    .unbatch()
    .map(lambda x: x * 10, num_parallel_calls=2)
    .repeat(2)
    .batch(5)
    .prefetch(3)
)
strategy = replicant.MirroredStrategy()
journal, position = folder / "journal", folder / "position.json"
iterator = iter(strategy.experimental_distribute_dataset(dataset))
length = 0
if position.exists():
    saved = json.loads(position.read_text())
    iterator.restore(saved["input"])
    length = saved["journal"]
with open(journal, "a+b") as file:
    file.truncate(length)
    for batch in iterator:
        rows = np.concatenate([np.asarray(share) for share in strategy.experimental_local_results(batch)]).tolist()
        file.write((json.dumps(rows) + chr(10)).encode())
        file.flush()
        new = folder / "position.new"
        new.write_text(json.dumps({"input": iterator.state(), "journal": file.tell()}))
        os.replace(new, position)
        time.sleep(seconds)
print("done")
"""


def start(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(seconds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(folder: Path) -> list[list[int]]:
    """Run to the end; all batches of the journal."""
    process = start(folder, 0)
    out, error = process.communicate(timeout=SECONDS)
    assert out == "done\n", error[-2000:]
    return [json.loads(line) for line in (folder / "journal").read_text().splitlines()]


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def records(tmp_path: Path) -> Path:
    for number in range(NUM_FILES):
        with TFRecordWriter(tmp_path / f"{number}.tfrecord") as writer:
            for i in range(NUM_RECORDS):
                writer.write(encode_example({"x": number * NUM_RECORDS + i}))
    return tmp_path


def test_kill_9_loses_and_repeats_nothing(records: Path) -> None:
    whole = finish(records)
    assert sorted(itertools.chain(*whole)) == sorted([i * 10 for i in range(NUM_FILES * NUM_RECORDS)] * 2)
    for name in ("journal", "position.json"):
        (records / name).unlink()
    for at in (3, 45):  # in the first pass, and in the second
        process = start(records, 0.02)
        deadline = time.monotonic() + SECONDS
        while num_lines(records / "journal") < at:
            assert process.poll() is None, process.communicate()[1][-2000:]
            assert time.monotonic() < deadline, "the program reads nothing"
            time.sleep(0.005)
        process.kill()
        process.communicate()
        assert process.returncode == -9
        assert num_lines(records / "journal") < len(whole), "it was killed too late"
    assert finish(records) == whole
