"""Synchronous updates are exact, whoever is killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("_ps_synchronous_program.py")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_every_gradient_counts_once_in_an_update_of_two(chaos, number):
    if number >= chaos.num_runs(5):
        pytest.skip(f"REPLICANT_TEST_RUNS={chaos.most}")
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(PROGRAM), str(chaos.seed + number), "200", "4"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"vector": 0, "rows": 0, "calls": 0, "updates": 0, "dropped": 0}
