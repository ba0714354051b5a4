"""Training that is killed at random moments ends with the weights and history of one that was not, to the last bit."""

import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("_chaos_program.py")
FULL = os.environ.get("REPLICANT_TEST_FULL") == "1"
SECONDS = 300.0  # for one run, on a machine that does much else
MOST_STEPS = 11  # before a kill: of the 40 steps, some are left after three kills
LIBRARIES = {"own": "replicant", "grain": "grain", "tf": "tensorflow"}

# loop, data, number of runs that are killed 1 to 3 times each. With REPLICANT_TEST_FULL=1: 40 runs, less those whose library is not
# installed.
RUNS = [
    (loop, data, (7 if data == "own" or loop == "fit" else 6) if FULL else 1 if data == "own" else 0)
    for loop in ("fit", "custom")
    for data in LIBRARIES
]


def run(loop: str, data: str, folder: Path, result: Path, kill: tuple[int, float] | None = None) -> bool:
    """Whether the program came to its end; it is killed so many seconds after so many steps, whatever it does then."""
    command = [sys.executable, "-W", "error::UserWarning:replicant", str(PROGRAM), loop, data, str(folder), str(result)]
    with (
        (folder.parent / "stderr").open("w+") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        alarm = threading.Timer(SECONDS, process.kill)
        alarm.start()
        try:
            assert process.stdout is not None
            num_lines = sum(1 for _ in (process.stdout if kill is None else itertools.islice(process.stdout, 1 + kill[0])))
            if kill is not None:
                time.sleep(kill[1])
                process.kill()
            process.wait(SECONDS)
            stderr.seek(0)
            assert process.returncode in (0, -9), stderr.read()[-3000:]
            assert alarm.is_alive(), f"the program hangs after {num_lines} lines"
        finally:
            alarm.cancel()
            process.kill()
        return process.returncode == 0


@pytest.mark.slow
@pytest.mark.again
@pytest.mark.parametrize(("loop", "data", "num_runs"), [row for row in RUNS if row[2]], ids=str)
def test_killed_training_ends_as_if_nothing_had_happened(loop: str, data: str, num_runs: int, tmp_path: Path, chaos: Any) -> None:
    if importlib.util.find_spec(LIBRARIES[data]) is None:
        pytest.skip(f"{LIBRARIES[data]} is not installed")
    assert run(loop, data, tmp_path / "whole", tmp_path / "whole.json")
    expected = json.loads((tmp_path / "whole.json").read_text())
    assert len(expected["weights"]) > 10
    rng = random.Random(f"{chaos.seed} {loop} {data}")
    for number in range(chaos.num_runs(num_runs)):
        folder, result = tmp_path / f"run-{number}", tmp_path / f"{number}.json"
        kills = [(rng.randint(1, MOST_STEPS), rng.uniform(0, 0.1)) for _ in range(rng.randint(1, 3) if FULL else 2)]
        for kill in kills:
            assert not run(loop, data, folder, result, kill)
        assert run(loop, data, folder, result)
        assert json.loads(result.read_text()) == expected, (chaos.seed, number, kills)
