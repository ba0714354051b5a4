"""The lock of a directory that several computers see, on file systems whose locks do not reach that far, or that have none."""

import contextlib
import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest

import replicant
from replicant.checkpoint.folders import _lock, _lock_heartbeat
from replicant.errors import CheckpointError

TOUCH, SILENCE = 0.1, 1.5

# A program on another computer, as far as the lock can tell. For each line of its input it takes the lock, or says why not.
HOLD = f"""
import errno, fcntl, sys
from pathlib import Path
from replicant.checkpoint.folders import _lock, _lock_heartbeat, _lock_owner
from replicant.errors import CheckpointError

def no_locks(*_):
    raise OSError(errno.ENOTSUP, "Operation not supported")

fcntl.flock = {{"none": no_locks, "local": lambda *_: None}}[sys.argv[2]]
_lock_heartbeat.TOUCH_SECONDS, _lock_heartbeat.SILENCE_SECONDS = {TOUCH}, {SILENCE}
_lock_owner.platform.node = lambda: sys.argv[3]
_lock_owner._boot = lambda: f"boot-of-{{sys.argv[3]}} container"
lock = _lock.DirectoryLock(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    try:
        lock.acquire()
        print("held", flush=True)
    except CheckpointError as error:
        print(error, flush=True)
"""

Start = Callable[[str], "subprocess.Popen[str]"]


def stream(found: IO[str] | None) -> IO[str]:
    assert found is not None
    return found


def ask(program: "subprocess.Popen[str]") -> None:
    stream(program.stdin).write("\n")
    stream(program.stdin).flush()


def answer(program: "subprocess.Popen[str]") -> str:
    return stream(program.stdout).readline().rstrip("\n")


@pytest.fixture(params=["none", "local"])
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a program on the computer of that name; here, too, the file system has no locks, or they do not reach the others."""

    def flock(*_: object) -> None:
        if request.param == "none":
            raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(_lock_heartbeat, "TOUCH_SECONDS", TOUCH)
    monkeypatch.setattr(_lock_heartbeat, "SILENCE_SECONDS", SILENCE)
    with contextlib.ExitStack() as stack:

        def begin(host: str) -> "subprocess.Popen[str]":
            command = [sys.executable, "-c", HOLD, str(tmp_path), request.param, host]
            program = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            stack.callback(program.kill)
            return program

        yield begin


def manager(folder: Path) -> replicant.CheckpointManager:
    return replicant.CheckpointManager(replicant.Checkpoint(x=np.ones(3)), folder, 3)


def holder(start: Start) -> "subprocess.Popen[str]":
    program = start("pod-1")
    assert answer(program) == "ready"
    ask(program)
    assert answer(program) == "held"
    return program


@pytest.mark.cases("local")
@pytest.mark.long
def test_a_program_on_another_computer_keeps_its_lock_while_it_runs_and_no_longer(tmp_path: Path, start: Start) -> None:
    program = holder(start)
    time.sleep(SILENCE)
    with manager(tmp_path) as mine:
        message = rf"is in use by process {program.pid} on pod-1, since \d{{4}}-.*If it no longer runs, delete "
        with pytest.raises(CheckpointError, match=message):
            mine.save()
        program.kill()
        program.wait()
        begun = time.monotonic()
        assert mine.save() == f"{tmp_path}/ckpt-1"
        assert time.monotonic() - begun < SILENCE + 3.0
        assert json.loads((tmp_path / ".replicant.lock").read_text())["pid"] == os.getpid()
    assert not list(tmp_path.glob(".replicant*"))


@pytest.mark.cases("none")
def test_an_old_lock_is_taken_over_at_once(tmp_path: Path, start: Start) -> None:
    program = holder(start)
    program.kill()
    program.wait()
    os.utime(tmp_path / ".replicant.lock", (1e9, 1e9))
    begun = time.monotonic()
    with manager(tmp_path) as mine:
        mine.save()
        assert time.monotonic() - begun < SILENCE


@pytest.mark.cases("local")
@pytest.mark.long
def test_a_program_that_was_stopped_learns_that_it_has_lost_its_lock(tmp_path: Path, start: Start) -> None:
    program = holder(start)
    os.kill(program.pid, signal.SIGSTOP)
    with manager(tmp_path) as mine:
        mine.save()
        os.kill(program.pid, signal.SIGCONT)
        ask(program)
        assert f"{tmp_path} has been taken over by process {os.getpid()} on " in answer(program)
        stream(program.stdin).close()
        assert program.wait(30) == 0
        assert json.loads((tmp_path / ".replicant.lock").read_text())["pid"] == os.getpid()
        mine.save()


@pytest.mark.cases("none")
@pytest.mark.long
def test_one_of_several_takes_over(tmp_path: Path, start: Start) -> None:
    gone = holder(start)
    rivals = [start(f"pod-{i}") for i in (2, 3, 4)]
    for rival in rivals:
        assert answer(rival) == "ready"
    gone.kill()
    gone.wait()
    for rival in rivals:
        ask(rival)
    answers = [answer(rival) for rival in rivals]
    assert answers.count("held") == 1
    winner = answers.index("held")
    refusal = f"is in use by process {rivals[winner].pid} on pod-{winner + 2}, since "
    assert [refusal in text for text in answers].count(True) == 2


@pytest.mark.cases("local")
@pytest.mark.long
def test_a_turn_of_a_killed_program_keeps_nobody(tmp_path: Path, start: Start) -> None:
    program = holder(start)
    program.kill()
    program.wait()
    (tmp_path / f"{_lock.LOCK}.turn").touch()
    with manager(tmp_path) as mine:
        mine.save()
