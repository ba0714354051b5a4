"""``replicant launch --engine ray`` on a Ray cluster of two nodes, both on this machine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="pip install 'replicant-jax[ps]': there is no Ray for this Python or this system")

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("_ray_launch_program.py")
SECONDS = 900


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict:
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"KERAS_BACKEND": "jax"}
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("launch"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_all_is_on_loopback(answers):
    assert answers["address"].startswith("127.0.0.1:")


def test_exit_codes_and_logs_come_back(answers):
    result = answers["fails"]
    assert result["code"] == 7
    assert "[1] rank 1 of 2 runs" in result["out"]
    assert re.match(r"replicant launch: rank 1 \(host .*, pid [1-9]\d*\) ended with exit code 7", result["err"])
    assert "\nrank 1 of 2 runs\n" in result["logs"][1]


@pytest.mark.slow
def test_killed_workers_start_again_from_the_last_backup(answers):
    result = answers["trains"]
    assert result["code"] == 0, result
    assert "was ended by SIGKILL" in result["err"]
    assert "Starting all workers again as generation 1 (restart 1 of 1)." in result["err"]
    for rank in range(2):  # each has all of a node: two nodes were used
        lines = result["logs"][rank].splitlines()
        assert [line for line in lines if line.startswith("begins")] == ["begins at step 0", "begins at step 3"]
        assert lines[-1] == "total 1128.0 with 2 replicas"


@pytest.mark.slow
def test_no_room(answers):
    result = answers["no room"]
    assert result["code"] == 1
    assert result["err"] == (
        "replicant launch: Ray found no place for 3 worker(s) with 1 CPU each within 3 s (--start). The cluster has 2 CPU, and "
        "others may use it.\n"
    )


@pytest.mark.slow
def test_workers_end_with_who_launched_them(answers):
    assert answers["launcher killed"]
