"""examples/distributed_input.py, run as users run it: the values that tf.distribute's guide prints for the same programs."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from _trace_log import assert_traced_once, logging_traces

ROOT = Path(__file__).resolve().parents[2]

EXPECTED = {
    "Without a strategy": ["16 rows: [0.7]"] * 6 + ["4 rows: [0.7]"],
    "Global batches": [f"{name} {' '.join(['[1., 1., 1., 1.]'] * 4)}" for name in ("features:", "labels:  ")],
    "Batches that do not divide": [
        "range(6).batch(4) on 2 replicas, step 0: [0, 1] [2, 3]",
        "range(6).batch(4) on 2 replicas, step 1: [4] [5]",
        "range(4).batch(4) on 5 replicas, step 0: [0] [1] [2] [3] []",
        "range(8).batch(4) on 3 replicas, step 0: [0, 1] [2, 3] []",
        "range(8).batch(4) on 3 replicas, step 1: [4, 5] [6, 7] []",
    ],
    "Several workers": [
        "Input plan: 2 workers, 2 replicas",
        "  policy: FILE, because AutoShardPolicy.FILE was asked for",
        "  global batches: of 4",
        "  worker 0: replica 0; reads first.txt; rows per batch: 2, then 2",
        "  worker 1: replica 1; reads second.txt; rows per batch: 2, then 2",
        "Input plan: 2 workers, 2 replicas",
        "  policy: DATA, because AutoShardPolicy.DATA was asked for",
        "  global batches: of 4",
        "  worker 0: replica 0; reads everything; rows per batch: 2",
        "  worker 1: replica 1; reads everything; rows per batch: 2",
        "Input plan: 2 workers, 2 replicas",
        "  policy: OFF, because AutoShardPolicy.OFF was asked for",
        "  global batches: of 4",
        "  saved positions: continue with 2 workers only, because each reads its own part",
        "  worker 0: replica 0; reads everything; rows per batch: 2, then 2",
        "  worker 1: replica 1; reads everything; rows per batch: 2, then 2",
    ],
    "An input function": ["rows: 4 4 4 4"] * 4,
    "A loop over": [f"Loss is {' '.join(['[0.7, 0.7, 0.7, 0.7]'] * 4)}"] * 6 + ["Loss is [0.7] [0.7] [0.7] [0.7]"],
    "A number of steps": ["epoch 0: 5 steps, sum 56.0", "epoch 1: 5 steps, sum 56.0"],
    "Several steps inside one function": ["[0] [1] [2] [3]", "[4] [5] [6] [7]", "[8] [] [] []"],
    "What the elements look like": [
        "PerReplicaSpec(spec=TensorSpec(shape=(2,), dtype=int64), num_replicas=4)",
        "[0, 2] [4, 6] [ 8, 10] [12, 14]",
        "[16, 18] [20, 22] [24, 26] [28, 30]",
    ],
    "Strings stay on the host": ["[1] [3] [0] [1]", "[3] [0] [1] [3]", "[0] [1] [3] [0]"],
    "Predictions in the order": [str({i: 2 * i for i in range(24)})],
    "Values without a dataset": ["0 1 2 3"] * 4,
}


def run_example(folder: Path, *options: str) -> str:
    unset = ("NPROC", "XLA_FLAGS", "PYTHONWARNINGS")
    log = Path(tempfile.mkdtemp())
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "distributed_input.py"), *options],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in unset} | logging_traces(log),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert assert_traced_once(log) > 0
    shutil.rmtree(log)
    return done.stdout


def sections(output: str) -> dict[str, list[str]]:
    """The lines under each heading."""
    parts = re.split(r"\n\d+\. (.*)\.\n", output)
    return {title: body.strip("\n").split("\n") for title, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, list[str]]:
    return sections(run_example(tmp_path_factory.mktemp("example")))


@pytest.mark.parametrize("title", EXPECTED)
@pytest.mark.long_cases("Without a strategy")
def test_every_section_prints_what_the_guide_prints(printed, title):
    (lines,) = [lines for heading, lines in printed.items() if heading.startswith(title)]
    assert lines == EXPECTED[title]


def test_the_generator_gives_each_replica_one_number_of_each_vector(printed):
    lines = printed["A generator whose vectors are global batches"]
    assert len(lines) == 4
    assert all(re.fullmatch(r"\[0\.\d+\]( \[0\.\d+\]){3}", line) for line in lines)
    assert len(printed) == len(EXPECTED) + 1


@pytest.mark.long
def test_two_replicas(tmp_path):
    printed = sections(run_example(tmp_path, "--replicas", "2"))
    (lines,) = [lines for heading, lines in printed.items() if heading.startswith("Several steps inside one function")]
    assert lines == ["[0, 1] [2, 3]", "[4, 5] [6, 7]", "[8] []"]
    assert list(tmp_path.iterdir()) == []
