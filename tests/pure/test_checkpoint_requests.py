"""What checkpoints at URLs ask of the store: few requests, not for long, and an error of their own whenever it does not answer."""

import threading
import time

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from replicant import Checkpoint, CheckpointManager, latest_checkpoint
from replicant.checkpoint.folders import _atomic_at_store
from replicant.checkpoint.folders._lock_owner import Owner
from replicant.checkpoint.format import _storage
from replicant.checkpoint.format._lazy_array import stored_arrays
from replicant.errors import CheckpointError
from replicant.storage import _retry
from replicant.storage._path import RemotePath
from replicant.storage._store import Store
from replicant.storage._write import WritableStore

URL = "memory://requests/run"
DEAD = f"{Owner.current().machine}-4194305-7-00000000"  # no process can have this number


@pytest.fixture
def system(monkeypatch):
    monkeypatch.setattr(_atomic_at_store, "COLLECT_SECONDS", 0.0)
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/requests"):
        system.rm("/requests", recursive=True)


def away(whole, name):
    """A method of a file system that reaches everything but this."""

    def method(self, path, *args, **kwargs):
        if path.rstrip("/").endswith(name):
            raise ConnectionError("the store is away")
        return whole(self, path, *args, **kwargs)

    return method


@pytest.mark.usefixtures("system")
@pytest.mark.long
def test_a_store_that_stalls_while_much_is_sent_is_not_waited_for_long(monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda self, path, value: ended.wait(30))
    ended, start = threading.Event(), time.monotonic()
    with pytest.raises(_retry.RemoteError, match=r"could not write memory://requests/run/a after .* no answer within"):
        WritableStore(f"{URL}/a").put(bytes(10_000_000))
    assert 1.0 < time.monotonic() - start < 8.0  # a second for 10 MB
    ended.set()


@pytest.fixture
def requests(monkeypatch):
    """The requests that are granted from now on: what they ask for, and how many bytes came."""
    made, once = [], Store._once

    def noting(self, method, path, seconds, *args, **kwargs):
        answer = once(self, method, path, seconds, *args, **kwargs)
        made.append((method, len(answer) if isinstance(answer, bytes) else 0))
        return answer

    monkeypatch.setattr(Store, "_once", noting)
    return made


@pytest.mark.usefixtures("system")
def test_small_arrays_side_by_side_take_one_request(requests):
    checkpoint = Checkpoint(values={f"v{i}": np.full(2000, i, np.float32) for i in range(600)})
    path = checkpoint.save(f"{URL}/ckpt")
    size = 600 * 8000
    for read in (lambda: checkpoint.restore(path), lambda: latest_checkpoint(URL)):
        requests.clear()
        read()
        assert size < sum(num_bytes for _, num_bytes in requests) < 1.1 * size
        assert len(requests) < 20
    assert [value[0] for value in checkpoint.values.values()] == list(range(600))


def test_a_save_does_not_look_at_all_checkpoints_each_time(system, requests, monkeypatch):
    monkeypatch.setattr(_atomic_at_store, "COLLECT_SECONDS", 3600.0)
    beside, made = f"{URL}/{time.monotonic()}", []  # where nothing was saved before
    with CheckpointManager(Checkpoint(x=1), beside, None) as manager:
        for _ in range(10):
            requests.clear()
            manager.save()
            made.append(len(requests))
    assert made[1:] == [4] * 9  # that are granted: writer, arrays and manifest, and a look at the first
    system.pipe(f"{beside.removeprefix('memory:/')}/ckpt-3/files-{DEAD}/arrays.bin", b"x")
    now, later = time.time() + 61, time.monotonic() + 3600
    monkeypatch.setattr(_atomic_at_store.time, "time", lambda: now)
    monkeypatch.setattr(_atomic_at_store.time, "monotonic", lambda: later)
    Checkpoint(x=1).save(f"{beside}/ckpt")
    assert len(system.ls(f"{beside.removeprefix('memory:/')}/ckpt-3")) == 2


def test_after_a_reader_could_not_be_opened_it_is_opened_anew(system, monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    path = Checkpoint(a=np.arange(3), b=np.arange(4)).save(f"{URL}/ckpt")
    stored = stored_arrays(RemotePath(path), _storage.read_manifest(RemotePath(path)))
    with monkeypatch.context() as patch:
        patch.setattr(type(system), "info", lambda self, path: 1 / 0)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="division by zero"):
                stored["a"].read()
    assert stored["a"].read().tolist() == [0, 1, 2]
    assert stored["b"].read().tolist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("system")
def test_a_store_that_goes_away_is_a_checkpoint_error(monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "info", away(MemoryFileSystem.info, "arrays.bin"))
        with pytest.raises(CheckpointError, match=r"could not look at memory://requests/run/ckpt-1/arrays\.bin .* is away"):
            Checkpoint(x=1).restore(f"{URL}/ckpt-1")
    Checkpoint(x=1).save(f"{URL}/ckpt")
    (RemotePath(URL) / "ckpt-1" / "manifest.json").store.put(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "ls", away(MemoryFileSystem.ls, "ckpt-1"))
        with pytest.raises(CheckpointError, match=r"could not list memory://requests/run/ckpt-1 .* is away"):
            CheckpointManager(Checkpoint(x=1), URL, 1)


def test_a_copy_without_a_manifest_is_deleted_when_its_time_comes(system):
    system.pipe("/requests/run/ckpt-1/arrays.bin", b"x")
    with CheckpointManager(Checkpoint(x=1), URL, 1) as manager:
        assert manager.checkpoints == [f"{URL}/ckpt-1"]
        manager.save()
        assert manager.checkpoints == [f"{URL}/ckpt-2"]
    assert {name.split("/")[3] for name in system.find("/requests/run")} == {"ckpt-2"}
