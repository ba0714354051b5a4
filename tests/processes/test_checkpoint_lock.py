"""Two programs and one directory of checkpoints; and what a killed one leaves there."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import replicant
from replicant.errors import CheckpointError

HOLD = """
import sys
from pathlib import Path
from replicant.checkpoint.folders._lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
lock.release()
"""

# A child that was forked while the lock was held keeps the lock's file open, and outlives its parent.
FORK = """
import os, sys, time
from pathlib import Path
from replicant.checkpoint.folders._lock import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""

HALF = """
import os, sys
from pathlib import Path
import numpy as np
from replicant.checkpoint.format import _storage
_storage.created = lambda *args: os._exit(9)
_storage.write(Path(sys.argv[1]) / "ckpt-1", {}, {"x": np.ones(1000)})
"""


@pytest.fixture
def other_program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lock of `tmp_path` until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def manager(folder: Path) -> replicant.CheckpointManager:
    return replicant.CheckpointManager(replicant.Checkpoint(x=np.ones(3)), folder, 3)


def test_the_second_program_is_refused_until_the_first_one_ends(tmp_path: Path, other_program: subprocess.Popen[str]) -> None:
    message = rf"is in use by process {other_program.pid} on .*, since \d{{4}}-.*Choose another directory, or end that program\."
    with manager(tmp_path) as mine:
        with pytest.raises(CheckpointError, match=message):
            mine.save()
        assert [path.name for path in tmp_path.iterdir()] == [".replicant.lock"]
        other_program.communicate("")
        assert mine.save() == f"{tmp_path}/ckpt-1"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_of_a_killed_program_is_taken_over(
    tmp_path: Path, other_program: subprocess.Popen[str], how: signal.Signals
) -> None:
    other_program.send_signal(how)
    other_program.wait(20)
    assert (tmp_path / ".replicant.lock").exists()
    with manager(tmp_path) as mine:
        mine.save()
        assert json.loads((tmp_path / ".replicant.lock").read_text())["pid"] == os.getpid()


def test_a_child_of_a_killed_program_does_not_keep_its_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait(20)
            os.kill(child, 0)
            with manager(tmp_path) as mine:
                mine.save()
        finally:
            os.kill(child, signal.SIGKILL)


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", HALF, str(tmp_path)], timeout=60, check=False)
    assert killed.returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".partial")
    assert replicant.latest_checkpoint(tmp_path) is None
    replicant.Checkpoint(x=np.ones(3)).save(tmp_path / "ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1"]


@pytest.mark.parametrize("content", ["[" * 4096, '{"since": 1e999}', '{"since": "x", "pid": 1e400}', "\x00\xff", "[1]", ""])
@pytest.mark.long
def test_a_lock_that_says_nonsense_is_held_by_another_program(tmp_path: Path, content: str) -> None:
    with (tmp_path / ".replicant.lock").open("w+") as file:
        file.write(content)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)  # of another opened file, so as good as another program's
        with (
            manager(tmp_path) as mine,
            pytest.raises(CheckpointError, match=r"is in use by another program\. Two programs that save"),
        ):
            mine.save()
