"""Workers and servers killed at random moments: every change of a variable is made exactly once."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("_ps_chaos_program.py")
SECONDS = 600


def run(seed: int, num_closures: int, roles: str, num_times: int, ways: str = "kill") -> dict:
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(PROGRAM), str(seed), str(num_closures), roles, str(num_times), ways]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def seed_of(chaos: Any, number: int) -> int:
    """The seed of one of the runs of a test."""
    if number >= chaos.num_runs(number + 1):
        pytest.skip(f"REPLICANT_TEST_RUNS={chaos.most}")
    return chaos.seed + number


def check(answer: dict, num_times: int) -> None:
    assert answer["error"] == "None"
    assert len(answer["done"]) == num_times
    expected = {"total": 0, "vector": 0, "table": 0, "results": True, "replaced": 0}  # how much each differs from what it is to be
    assert {name: answer[name] for name in expected} == expected


@pytest.mark.slow
def test_sums_are_exact_whoever_is_killed():
    check(run(0, 200, "worker,server", 4), 4)


def test_what_a_killed_worker_held_is_done_exactly_once():
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(PROGRAM.with_name("_ps_queued_program.py")), "400", "2"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer.pop("held") > 4
    assert answer == {"total": 0, "results": True, "replaced": 2}


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [1, 20])
def test_a_killed_coordinator_goes_on_from_its_checkpoint(chaos, num_kills, tmp_path):
    rng, num_kills = random.Random(f"{chaos.seed} {num_kills}"), chaos.num_runs(num_kills)
    count = 100 + 200 * num_kills
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(PROGRAM.with_name("_ps_restarted_program.py")), str(tmp_path), str(count)]
    for number in range(num_kills):
        num_saved = rng.randint(0 if number else 1, 10)  # so that there is something to go on from
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                lines = [process.stdout.readline() for _ in range(1 + num_saved)]
                assert lines == ["training\n", *["saved\n"] * num_saved]
                time.sleep(rng.uniform(0, 0.1))
            finally:
                process.kill()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    total = count * (count - 1) // 2
    assert json.loads(done.stdout.splitlines()[-1]) == {"total": total, "vector": [total], "resumed": True}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_sums_are_exact_whoever_is_killed_many_times(chaos, number):
    check(run(seed_of(chaos, number), 500, "worker,server", 6), 6)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_sums_are_exact_whoever_is_killed_or_stopped(chaos, number):
    check(run(seed_of(chaos, number), 500, "worker,server", 6, "kill,freeze,pause"), 6)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker", "server"])
def test_twenty_kills_of_one_role(chaos, role):
    check(run(chaos.seed, 300, role, 20), 20)
