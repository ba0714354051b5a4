"""Training with variables in slices that is killed at random moments, and goes on, ends as if nothing had happened."""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "processes"))  # test folders are no packages

import _group  # noqa: E402

PROGRAM = HERE / "_chaos_program.py"
NUM_RUNS = 20  # of each kind, in full
SECONDS = 400.0  # for one run, on a machine that does much else
MOST_STEPS = 30  # of 40, before a kill


class Job:
    """The processes of one start of the program: one process with `slices` devices, or two workers with two devices each."""

    def __init__(self, folder: Path, loop: str, slices: str):
        (folder / "job").mkdir(parents=True, exist_ok=True)
        self.result = folder / "result.json"
        self.result.unlink(missing_ok=True)
        arguments = [loop, "own", str(folder / "backup"), str(self.result)]
        one = dict.fromkeys(("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"))
        environ = {
            "SLICES": slices,
            "REPLICANT_COMPILATION_CACHE": str(folder.parent / "programs"),
            **(one if slices != "all" else {}),
        }
        self.group = _group.Group(PROGRAM, 2 if slices == "all" else 1, folder / "job", arguments, environ)

    def killed(self, rng: random.Random, steps: int, seconds: float) -> bool:
        """Kill the processes, in any order, so many seconds after a worker has done so many steps; -1 is before it trains.

        Returns False if it has ended before.
        """
        workers = self.group.workers
        first, *others = rng.sample(range(len(workers)), len(workers))
        deadline = time.monotonic() + SECONDS
        while steps >= 0 and (self.group.folder / f"{first}.out").read_text().count("\n") < 1 + steps:
            assert time.monotonic() < deadline, "the program hangs"
            if workers[first].poll() is not None:
                break
            time.sleep(0.005)
        time.sleep(seconds)
        was_running = workers[first].poll() is None
        for rank in (first, *others):
            workers[rank].kill()
            workers[rank].wait(60)
            time.sleep(rng.choice([0, rng.uniform(0, 0.5)]))
        return was_running

    def ended(self) -> Any:
        self.group.ended_well(SECONDS)
        return json.loads(self.result.read_text())


def random_kill(rng: random.Random) -> tuple[int, float]:
    if rng.random() < 0.2:
        return -1, rng.uniform(0, 6)  # while it starts, compiles or restores
    return rng.randint(0, MOST_STEPS), rng.uniform(0, 0.1)  # in a step, or while it saves: after every second step


@pytest.mark.slow
@pytest.mark.parametrize("slices", ["4", "all"], ids=["4 devices", "2x2"])
def test_killed_training_ends_with_the_same_bits(
    tmp_path: Path, slices: str, chaos: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    loops = ("fit", "custom")
    expected = {loop: Job(tmp_path / loop, loop, slices).ended() for loop in loops}
    first = int(os.environ.get("REPLICANT_TEST_FIRST", "0"))
    for number in range(first, first + chaos.num_runs(NUM_RUNS - first)):
        rng, loop = random.Random(f"{chaos.seed} {slices} {number}"), loops[number % 2]
        kills = [random_kill(rng) for _ in range(rng.choice([1, 1, 2]))]
        struck = [Job(tmp_path / str(number), loop, slices).killed(rng, *kill) for kill in kills]
        found = Job(tmp_path / str(number), loop, slices).ended()
        with capsys.disabled():
            print(f"\nseed {chaos.seed}, {slices}, run {number}: {loop}, kills {kills}, {struck}: {found == expected[loop]}")
        assert found == expected[loop], (chaos.seed, number, kills)


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_with_other_numbers_of_devices(tmp_path: Path) -> None:
    """On 4, then 2, then 8 devices: the weights are those of one start on 4, but for rounding."""
    expected = Job(tmp_path / "whole", "fit", "4").ended()
    rng = random.Random(0)
    for slices, steps in (("4", 9), ("2", 8)):
        assert Job(tmp_path / "run", "fit", slices).killed(rng, steps, 0.05)
    found = Job(tmp_path / "run", "fit", "8").ended()
    for (path, value), (same, right) in zip(found["weights"], expected["weights"], strict=True):
        assert path == same
        arrays = [np.frombuffer(bytes.fromhex(each), np.float32 if len(each) > 8 else np.uint32) for each in (value, right)]
        np.testing.assert_allclose(*arrays, rtol=1e-5, atol=1e-5, err_msg=path)
    np.testing.assert_allclose(found["history"]["loss"], expected["history"]["loss"], rtol=1e-5, atol=1e-5)
