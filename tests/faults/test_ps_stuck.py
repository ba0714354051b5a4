"""Workers and servers that stand still: nobody waits for them for ever, and what they held is done exactly once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("_ps_stuck_program.py")


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict:
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("stuck"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("frozen_server", [True, 20, 28, 28]),
        ("never_comes", "did not start within 1 s"),
        ("lost_message", [True, 20, 48, 48, [True]]),
        ("hidden_end", "FileExistsError: "),
        ("unknown_class", "cannot be unpickled here: ModuleNotFoundError: No module named 'only_here'."),
    ],
)
def test_who_stands_still_is_replaced(answers, case, expected):
    found = answers[case]
    assert (found[: len(expected)] if isinstance(expected, str) else found) == expected


def test_nobody_waits_for_a_frozen_worker_and_who_has_what_is_told(answers):
    *state, said = answers["frozen_worker"]
    assert state == [True, 8 * 2_000_000, 8, 8]
    assert re.match(
        r"\d closures have not ended within 0\.01 s\. worker 0 has 'Cases.schedule.<locals>.add' \(closure \d, attempt 0\) and "
        r"\d more; worker 1 \(process \d+\) has .*\. Not sent to any worker: \d\. They keep running; `kill",
        said,
    )
