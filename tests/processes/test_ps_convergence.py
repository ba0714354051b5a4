"""Asynchronous training, its staleness bounded, reaches in as many examples what synchronous training reaches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("with_sklearn")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("_ps_convergence.py")
TEST_DATA = Path(os.environ.get("REPLICANT_TEST_DATA", ROOT / "data"))
BOUND = 3


def run(seconds: float, **task) -> dict:
    env = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")}
    command = [sys.executable, str(PROGRAM), json.dumps({"max_staleness": BOUND, **task})]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    for histogram in answers["staleness"]:
        assert sum(histogram) > 0
        assert len(histogram) <= task.get("max_staleness", BOUND) + 1, histogram  # counts of 0, 1 and so on
    return answers


@pytest.mark.slow
def test_a_small_sample_learns_as_well():
    found = run(400, workers=[2], wide={"rows": 2000, "steps": 150})["wide"]
    # So early in training a stale step still shows, and how many are stale depends on the machine: the full runs have the bound.
    assert found["synchronous"] > 65  # chance is 50
    assert found["2"] > found["synchronous"] - 10


@pytest.mark.slow
def test_a_small_sample_of_the_cnn_learns_as_well():
    found = run(400, workers=[2], cnn={"name": "digits", "epochs": 3, "batch": 16})["cnn"]
    assert found["synchronous"] > 85  # chance is 10
    assert found["2"] > found["synchronous"] - 10


@pytest.mark.slow
def test_the_wide_example_within_half_a_point():
    found = run(3600, workers=[2, 4], wide={"rows": 1_000_000, "steps": 3200})["wide"]
    assert found["synchronous"] > 65
    assert {workers: found[workers] for workers in "24"} == pytest.approx(dict.fromkeys("24", found["synchronous"]), abs=0.5)


@pytest.mark.slow
def test_the_cnn_on_mnist_within_half_a_point():
    folder = TEST_DATA / "mnist"
    if not folder.is_dir():
        pytest.skip(f"no {folder}: name a folder that holds mnist/ with REPLICANT_TEST_DATA")
    # With a bound of 3, four workers ended 0.3 and 0.7 points below; with 1, 0.05 and 0.2.
    found = run(3600, workers=[2, 4], max_staleness=1, cnn={"name": "mnist", "folder": str(folder), "epochs": 2, "batch": 64})[
        "cnn"
    ]
    assert found["synchronous"] > 98
    assert {workers: found[workers] for workers in "24"} == pytest.approx(dict.fromkeys("24", found["synchronous"]), abs=0.5)
