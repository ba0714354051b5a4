"""A save that is killed leaves the dataset before it, and the next save removes what was left behind."""

import os
import subprocess
import sys
import time

import pytest

from replicant.data import Dataset
from replicant.errors import DatasetError
from replicant.input.files.saved import _save_folders

WRITER = """
import pathlib, sys, time
from replicant.data import Dataset

def stuck(x):
    if x == 700:
        pathlib.Path(sys.argv[2]).touch()
        time.sleep(600)
    return x

Dataset.range(1000).map(stuck).save(sys.argv[1], shard_func=lambda x: x % 2)
"""
SECONDS = 120


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of a save to the folder ``saved``."""
    (tmp_path / "saved").mkdir()
    Dataset.range(10).save(tmp_path / "saved")
    inside = tmp_path / "inside"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "saved"), str(inside)], env=environment)
    deadline = time.monotonic() + SECONDS
    while not inside.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()


def names(folder):
    return sorted(path.name.partition("-")[0] for path in folder.iterdir())


@pytest.mark.long
def test_what_a_killed_save_left_is_removed_by_the_next_one_and_what_a_living_one_writes_is_not(tmp_path, writer):
    folder = tmp_path / "saved"
    assert names(folder) == ["run", "run", "run", "snapshot.json"]  # the folder of each save, and the lock of the second
    Dataset.range(20).save(folder)
    assert names(folder) == ["run", "run", "run", "snapshot.json"]
    assert list(Dataset.load(folder)) == [*range(20)]
    writer.kill()
    writer.wait()
    assert list(Dataset.load(folder)) == [*range(20)]
    assert names(folder) == ["run", "run", "run", "snapshot.json"]
    Dataset.range(30).save(folder)
    assert names(folder) == ["run", "snapshot.json"]
    assert list(Dataset.load(folder)) == [*range(30)]


def test_what_was_left_elsewhere_in_a_save_is_removed_and_nothing_else(tmp_path):
    Dataset.range(3).save(tmp_path)
    (tmp_path / f"run-{'0' * 32}").mkdir()  # of a save that was killed between its two last steps
    (tmp_path / f"run-{'1' * 32}.lock").touch()  # and just after its first
    (tmp_path / f"run-{'2' * 32}").symlink_to(tmp_path / "own")
    for name in ("own", "run-mine", f"run-{'3' * 31}", f"run-{'4' * 32}.txt"):
        (tmp_path / name).mkdir()
    Dataset.range(4).save(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    kept = {"own", "run-mine", f"run-{'3' * 31}", f"run-{'4' * 32}.txt", f"run-{'2' * 32}", "snapshot.json"}
    assert left - kept == {path.name for path in tmp_path.glob("run-*") if (path / "shard-00000").exists()}
    assert kept <= left
    assert len(left) == len(kept) + 1
    assert list(Dataset.load(tmp_path)) == [0, 1, 2, 3]


def test_a_lock_file_that_is_taken_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    """As when another save looks for abandoned folders between the two calls."""
    locks = []
    real = _save_folders.fcntl.flock

    def flock(descriptor, operation):
        if not locks:
            locks.extend(tmp_path.glob("*.lock"))
            locks[0].unlink()
        real(descriptor, operation)

    monkeypatch.setattr(_save_folders.fcntl, "flock", flock)
    Dataset.range(3).save(tmp_path)
    assert len(locks) == 1
    assert names(tmp_path) == ["run", "snapshot.json"]
    assert list(Dataset.load(tmp_path)) == [0, 1, 2]


def test_without_locks_nothing_is_removed_that_may_be_in_use(tmp_path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_save_folders.fcntl, "flock", unsupported)
    Dataset.range(3).save(tmp_path)
    for name in (f"run-{'0' * 32}.lock", f"run-{'1' * 32}"):
        (tmp_path / name).mkdir() if not name.endswith("lock") else (tmp_path / name).touch()
    (tmp_path / f"run-{'0' * 32}").mkdir()
    Dataset.range(4).save(tmp_path)
    assert (tmp_path / f"run-{'0' * 32}").exists()
    assert not (tmp_path / f"run-{'1' * 32}").exists()


def test_a_folder_that_cannot_be_written_to_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=r"save: cannot write to '.*inner': Not a directory\."):
        Dataset.range(3).save(tmp_path / "file" / "inner")
