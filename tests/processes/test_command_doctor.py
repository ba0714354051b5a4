"""``replicant doctor`` whole, and what it says of processes that hang, die or print something else."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replicant.cli._checkup import CHECKS, FACTS, run_selftest

from ._traps import Traps

CHILD = """\
import json, sys, time
print("noise", flush=True)
for name in sys.argv[1:]:
    if name == "hang":
        time.sleep(600)
    if name == "die":
        print("the reason", file=sys.stderr)
        sys.exit(3)
    print(json.dumps({"state": "ok", "detail": f"{name} is fine", "remedy": ""}), flush=True)
"""


@pytest.mark.long
def test_a_check_that_hangs_or_dies_is_red_and_the_others_are_done():
    results = list(run_selftest(["a", "die", "b", "hang", "c"], 2.5, dict(os.environ), [sys.executable, "-c", CHILD]))
    remedies = [result.remedy for result in results if result.state == "fail"]
    assert remedies == ["if a plain JAX program works here, please report this"] * 2
    assert [(result.name, result.state, result.detail) for result in results] == [
        ("a", "ok", "a is fine"),
        ("die", "fail", "the process ended with 3: the reason"),
        ("b", "ok", "b is fine"),
        ("hang", "fail", "no answer within 2.5 s"),
        ("c", "ok", "c is fine"),
    ]


@pytest.mark.slow
def test_the_processes_that_a_hanging_check_started_end_with_it(tmp_path):
    child = f"""\
import subprocess, sys, time
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(grandchild.pid))
time.sleep(600)
"""
    (result,) = run_selftest(["two processes"], 5.0, dict(os.environ), [sys.executable, "-c", child])
    assert (result.state, result.detail) == ("fail", "no answer within 5 s")
    assert result.remedy.startswith("loopback must be open")
    stat = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    deadline = time.monotonic() + 120
    while stat.exists() and stat.read_text().rpartition(") ")[2][0] != "Z":  # one that nobody waits for stays as a zombie
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def doctor(tmp_path_factory):
    """All of it, as in a cluster job whose variables must not reach the self-test."""
    unset = ("NPROC", "XLA_FLAGS", "PYTHONWARNINGS", "REPLICANT_FUSE_REPLICAS", "REPLICANT_COMPILATION_CACHE", "KERAS_BACKEND")
    clean = {name: value for name, value in os.environ.items() if name not in unset and not name.lower().endswith("_proxy")}
    cluster = {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1"}
    traps = Traps(tmp_path_factory.mktemp("doctor"))
    done = subprocess.run(
        [sys.executable, traps.command, "doctor", "--json", "--deadline", "300"],
        cwd=traps.folder,
        env={**clean, **cluster},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    return done.returncode, json.loads(done.stdout), traps.sprung()


def test_everything_is_looked_at_and_nothing_fails(doctor):
    status, found, _ = doctor
    assert [check["name"] for check in found["checks"]] == [*FACTS, *CHECKS]
    assert [check for check in found["checks"] if check["state"] == "fail"] == []
    assert (status, found["ok"]) == (0, True)


def test_nothing_is_run_that_lies_in_the_current_folder(doctor):
    """Neither by the self-test's process, nor by the two that it starts."""
    assert doctor[2] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cluster", "process 1 of 2"),
        ("devices", "cpu:0, cpu:1"),
        ("all-reduce on every device", "sums over 2 replicas are right"),
        ("training equals one device", "20 steps: at most"),
        ("input", "101 elements came once each"),
        ("checkpoint", "a flipped bit was noticed"),
        ("two processes", "and their sum is right"),
    ],
)
def test_what_it_found(doctor, name, words):
    (check,) = [check for check in doctor[1]["checks"] if check["name"] == name]
    if name != "devices" or "cpu" in check["detail"]:
        assert words in check["detail"]
