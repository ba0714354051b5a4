"""Servers and workers as Ray's actors: one start of Ray for everything, and nothing left of it."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="pip install 'replicant-jax[ps]': there is no Ray for this Python or this system")

PROGRAM = Path(__file__).with_name("_ps_ray_program.py")
SECONDS = 900

pytestmark = pytest.mark.slow  # 40 s, most of which Ray starts and ends processes


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> dict:
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"KERAS_BACKEND": "jax"}
    command = [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("ray"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"standard error": done.stderr}  # and not a word besides


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("environment", True),  # as it was, after Ray was started
        ("remote values", True),
        ("sums", [190.0, 190.0, [190]]),
        ("shards", [[2500], [2500]]),
        ("dataset", True),
        ("rows", [[24.0, 79992.0], [25.0, 79993.0], [26.0, 79994.0]]),
        ("rows here", [28.0, 33.0, 79996.0]),
        ("checkpoint", [190]),
        ("worker killed", [100.0, 1]),  # the sum of 100 ones, and one worker replaced
        ("server killed", [[1007.0, 1007.0], [1001.0, 1008.0]]),  # server 0 began again with 1000
        ("lost", [[7, 0], 1]),  # and that is told
        ("still there", True),  # as long as somebody uses it
        ("ended", True),
    ],
)
def test_answers(answers, question, expected):
    assert answers[question] == expected


def test_fit_is_what_it_is_with_shared_memory(answers):
    assert answers["fit"] < 1e-6


def test_the_loss_is_said(answers):
    said = r"^Server 0 was lost and restarts from its snapshot of update \d+\. At least 7 updates were lost with it\.$"
    assert re.search(said, answers["standard error"], re.MULTILINE)


def test_nothing_is_left_running(answers):
    deadline = time.monotonic() + SECONDS
    while (left := [pid for pid in answers["pids"] if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def is_running(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
