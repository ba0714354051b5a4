"""Checkpoints at URLs: the same values as in local folders, one of two writers, no leftovers, and nothing without a manifest."""

import json
import pathlib
import re
import shutil
import threading
import time

import fsspec
import numpy as np
import pytest

from replicant import Checkpoint, CheckpointManager, CheckpointOptions, Variable, latest_checkpoint, list_variables, load_variable
from replicant.checkpoint.folders import _atomic_at_store
from replicant.checkpoint.folders._locations import place_of
from replicant.checkpoint.format import _storage
from replicant.errors import CheckpointError, ConfigurationError, DamagedCheckpointError
from replicant.storage import _retry, _write
from replicant.storage._path import RangeReader, RemotePath
from replicant.storage._write import WritableStore

DEAD = f"{_atomic_at_store.Owner.current().machine}-4194305-7-00000000"  # no process can have this number


@pytest.fixture
def system(monkeypatch):
    monkeypatch.setattr(_atomic_at_store, "COLLECT_SECONDS", 0.0)
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/bucket"):
        system.rm("/bucket", recursive=True)


URL = "memory://bucket/run"


def below(system, path="/bucket/run"):
    return sorted(name.removeprefix(f"{path}/") for name in system.find(path)) if system.exists(path) else []


def test_values_come_back_and_the_folder_can_be_copied_to_a_disk(system, tmp_path):
    step, weights = Variable(3), Variable(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    checkpoint = Checkpoint(step=step, weights=weights, best=0.5)
    path = checkpoint.save(f"{URL}/ckpt")
    assert path == f"{URL}/ckpt-1"
    assert checkpoint.save(f"{URL}/ckpt") == f"{URL}/ckpt-2"
    step.assign(0)
    weights.assign(np.zeros((2, 3)))
    assert latest_checkpoint(URL) == f"{URL}/ckpt-2"
    checkpoint.restore(path).assert_consumed()
    assert (int(step), weights.numpy().tolist(), checkpoint.best) == (3, [[0, 1, 2], [3, 4, 5]], 0.5)
    assert list_variables(path) == [("best", ()), ("step", ()), ("weights", (2, 3))]
    assert load_variable(path, "weights")[1].tolist() == [3, 4, 5]
    names = below(system, "/bucket/run/ckpt-1")
    assert [re.sub(r"files-[-0-9a-f]+/", "F/", name) for name in names] == ["F/arrays.bin", "F/writer.json", "manifest.json"]
    system.get("/bucket/run/ckpt-1", str(tmp_path), recursive=True)
    copied = next(tmp_path.rglob("manifest.json")).parent
    assert _storage.verify(copied)["save_counter"] == 1
    step.assign(0)
    checkpoint.restore(copied).assert_consumed()
    assert int(step) == 3
    local = checkpoint.write(tmp_path / "local")  # format 2, as it always was
    assert json.loads((tmp_path / "local/manifest.json").read_bytes())["version"] == 2
    system.put(local, "/bucket/run/local", recursive=True)
    step.assign(0)
    checkpoint.read(f"{URL}/local").assert_consumed()
    assert int(step) == 3


def test_a_manager_keeps_the_newest_and_the_best(system):
    step = Variable(0)
    with CheckpointManager(Checkpoint(step=step), URL, 2, best_metric="loss") as manager:
        for loss in (3.0, 1.0, 2.0, 4.0):
            step.assign_add(1)
            manager.save(options=CheckpointOptions(enable_async=True), metrics={"loss": loss})
        assert manager.checkpoints == [f"{URL}/ckpt-{i}" for i in (2, 3, 4)]
        assert manager.best_checkpoint == f"{URL}/ckpt-2"
    assert {name.partition("/")[0] for name in below(system)} == {"ckpt-2", "ckpt-3", "ckpt-4"}
    arrays = next(name for name in below(system) if name.startswith("ckpt-4/") and name.endswith("arrays.bin"))
    system.pipe(f"/bucket/run/{arrays}", b"\x07" * len(system.cat(f"/bucket/run/{arrays}")))
    again = CheckpointManager(Checkpoint(step=step), URL, 2, best_metric="loss")
    with pytest.warns(UserWarning, match=r"Skipped the checkpoint memory://bucket/run/ckpt-4: .*arrays\.bin is damaged"):
        assert again.restore_or_initialize() == f"{URL}/ckpt-3"
    assert int(step) == 3
    assert again.save(metrics={"loss": 9.0}) == f"{URL}/ckpt-5"


def test_of_two_writers_of_one_number_one_wins_and_the_other_is_told(system):
    start = threading.Barrier(2)
    said = {}

    def write(number):
        checkpoint = Checkpoint(number=number, weights=np.full(1000, float(number)))
        start.wait()
        try:
            said[number] = checkpoint.write(f"{URL}/final")
        except CheckpointError as error:
            said[number] = error

    for _ in range(5):
        threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        lost = [number for number, each in said.items() if isinstance(each, CheckpointError)]
        assert len(lost) == 1
        assert re.fullmatch(
            r"memory://bucket/run/final already exists \(written by process \d+ on .*, which began at .*\), and a checkpoint is "
            r"never overwritten\. Choose another path, or delete it first\.",
            str(said[lost[0]]),
        )
        assert load_variable(f"{URL}/final", "number") == 3 - lost[0]
        assert len(below(system)) == 3  # and nothing of the other
        system.rm("/bucket/run", recursive=True)


def test_parts_without_a_manifest_count_for_nothing_and_the_next_save_removes_those_of_the_dead(system, monkeypatch):
    Checkpoint(x=1).save(f"{URL}/ckpt")
    live = _atomic_at_store.draft_of(RemotePath(f"{URL}/ckpt-2")).name
    away = "files-00000000-1-1-00000000"
    for folder in (f"files-{DEAD}", live, away):
        system.pipe(f"/bucket/run/ckpt-2/{folder}/arrays.bin", b"x" * 100)
    system.pipe("/bucket/run/notes/arrays.txt", b"of a user")
    assert latest_checkpoint(URL) == f"{URL}/ckpt-1"
    with CheckpointManager(Checkpoint(x=1), URL, None) as manager:
        assert manager.checkpoints == [f"{URL}/ckpt-1"]
    Checkpoint(x=2).write(f"{URL}/ckpt-7")  # so young that a request of the dead writer could still be on its way
    assert len(system.ls("/bucket/run/ckpt-2")) == 3
    now = time.time()
    monkeypatch.setattr(_atomic_at_store.time, "time", lambda: now + 61)
    Checkpoint(x=2).write(f"{URL}/ckpt-8")
    assert sorted(each["name"].rpartition("/")[2] for each in system.ls("/bucket/run/ckpt-2")) == sorted([live, away])
    monkeypatch.setattr(_atomic_at_store.time, "time", lambda: now + 24 * 3600 + 1)
    Checkpoint(x=2).write(f"{URL}/ckpt-9")
    assert [each["name"].rpartition("/")[2] for each in system.ls("/bucket/run/ckpt-2")] == [live]
    assert [load_variable(f"{URL}/ckpt-{i}", "x") for i in (1, 7, 8, 9)] == [1, 2, 2, 2]
    assert system.exists("/bucket/run/notes/arrays.txt")


def test_garbage_beside_a_checkpoint_goes_but_what_its_manifest_names_stays(system, monkeypatch):
    path = Checkpoint(x=1).save(f"{URL}/ckpt")
    [own] = [each["name"] for each in system.ls("/bucket/run/ckpt-1") if each["type"] == "directory"]
    manifest = json.loads(system.cat("/bucket/run/ckpt-1/manifest.json"))
    del manifest["checksum"]
    manifest["folder"] = f"files-{DEAD}"  # as if its writer had died since
    system.mv(own, f"/bucket/run/ckpt-1/files-{DEAD}", recursive=True)
    system.pipe("/bucket/run/ckpt-1/manifest.json", _storage._dump({**manifest, "checksum": _storage._checksum(manifest)}))
    system.pipe(f"/bucket/run/ckpt-1/files-{DEAD[:-1]}1/arrays.bin", b"x")
    now = time.time()
    monkeypatch.setattr(_atomic_at_store.time, "time", lambda: now + 61)
    Checkpoint(x=2).save(f"{URL}/ckpt")
    assert load_variable(path, "x") == 1
    assert len(below(system, "/bucket/run/ckpt-1")) == 3


@pytest.mark.parametrize("folder", ["..", "files-00000000-1-1-00000000/..", "", 7, None, "other"])
def test_a_manifest_cannot_name_other_folders(system, folder):
    path = Checkpoint(x=1).save(f"{URL}/ckpt")
    manifest = json.loads(system.cat("/bucket/run/ckpt-1/manifest.json"))
    del manifest["checksum"]
    manifest["folder"] = folder
    system.pipe("/bucket/run/ckpt-1/manifest.json", _storage._dump({**manifest, "checksum": _storage._checksum(manifest)}))
    with pytest.raises(DamagedCheckpointError, match=r"manifest\.json is damaged: it does not name the folder with its files\."):
        list_variables(path)


def test_a_local_manifest_names_no_folder(tmp_path):
    path = tmp_path / "ckpt"
    Checkpoint(x=np.arange(3)).write(path)
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["checksum"]
    manifest["folder"] = "../other"
    shutil.copytree(path, tmp_path / "other")
    (path / "manifest.json").write_bytes(_storage._dump({**manifest, "checksum": _storage._checksum(manifest)}))
    (tmp_path / "other/arrays.bin").write_bytes(b"\x07" * 24)
    assert load_variable(path, "x").tolist() == [0, 1, 2]


def test_files_that_are_missing_are_damage_and_a_store_that_fails_is_not(system, monkeypatch):
    path = Checkpoint(x=np.arange(1000)).save(f"{URL}/ckpt")
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    whole = type(system).cat_file

    def failing(self, name, *args, **kwargs):
        if name.endswith("arrays.bin"):
            raise ConnectionError("the store is away")
        return whole(self, name, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(type(system), "cat_file", failing)
        for read in (
            lambda: load_variable(path, "x"),
            lambda: latest_checkpoint(URL),
            lambda: Checkpoint(x=np.zeros(1000, int)).restore(path),
        ):
            with pytest.raises(
                CheckpointError, match=r"could not read memory://.*arrays\.bin after .* the store is away"
            ) as raised:
                read()
            assert not isinstance(raised.value, DamagedCheckpointError)
    [arrays] = [name for name in system.find("/bucket/run") if name.endswith("arrays.bin")]
    system.rm(arrays)
    with pytest.raises(DamagedCheckpointError, match=r"arrays\.bin is missing"):
        load_variable(path, "x")
    with pytest.raises(CheckpointError, match=r"There is no readable checkpoint at memory://bucket/run/ckpt-5: "):
        list_variables(f"{URL}/ckpt-5")


def test_a_writer_that_cannot_write_leaves_nothing(system, monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    whole = type(system).pipe_file

    def failing(self, name, *args, **kwargs):
        if name.endswith("arrays.bin"):
            raise ConnectionError("the store is full")
        return whole(self, name, *args, **kwargs)

    monkeypatch.setattr(type(system), "pipe_file", failing)
    with pytest.raises(
        CheckpointError,
        match=r"The checkpoint memory://bucket/run/ckpt-1 could not be written \(could not write memory://.*arrays\.bin after "
        r".* the store is full\)\. None of it is used\.",
    ):
        Checkpoint(x=1).save(f"{URL}/ckpt")
    assert below(system) == []


def test_a_manifest_that_is_not_confirmed_keeps_its_files(system, monkeypatch):
    """The answer to the manifest is lost again and again, although the store has it."""
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    monkeypatch.setattr(WritableStore, "put_if_absent", lambda self, data, **_: (self.put(data), _lost(self))[1])
    with pytest.raises(
        CheckpointError, match=r"It is not known whether the checkpoint memory://bucket/run/ckpt-1 exists, .*is away"
    ):
        Checkpoint(x=5).save(f"{URL}/ckpt")
    assert latest_checkpoint(URL) == f"{URL}/ckpt-1"
    assert load_variable(f"{URL}/ckpt-1", "x") == 5


def _lost(store):
    raise _retry.RemoteError(f"could not write {store.url}: the store is away")


def test_only_one_of_two_puts_wins_whatever_answers_are_lost(system, monkeypatch):
    store = WritableStore(f"{URL}/one")
    whole, lost = type(system).pipe_file, [True]

    def losing(self, name, *args, **kwargs):
        whole(self, name, *args, **kwargs)
        if lost and lost.pop():
            raise ConnectionError("the answer was lost")

    monkeypatch.setattr(type(system), "pipe_file", losing)
    assert store.put_if_absent(b"mine", store_decides=True)
    assert store.put_if_absent(b"mine", store_decides=True)
    assert not WritableStore(f"{URL}/one").put_if_absent(b"other", store_decides=True)
    assert store.get() == b"mine"
    monkeypatch.setattr(_write, "_SETTLING_SECONDS", 0.01)
    assert not store.put_if_absent(b"third", store_decides=False)
    lost.append(True)
    assert WritableStore(f"{URL}/two").put_if_absent(b"first", store_decides=False)
    assert sorted(entry.name for entry in WritableStore(URL).entries()) == ["one", "two"]
    store.delete()
    store.delete()
    assert not store.exists()


def test_ranges_are_read_as_from_a_file(system, monkeypatch, tmp_path):
    data = np.random.default_rng(0).bytes(5000)
    system.pipe("/bucket/run/data", data)
    (tmp_path / "data").write_bytes(data)
    monkeypatch.setattr("replicant.storage._path.WINDOW", 100)
    monkeypatch.setattr("replicant.storage._path._PIECE", 300)
    remote = RemotePath(f"{URL}/data").open_to_read()
    assert isinstance(remote, RangeReader)
    rng = np.random.default_rng(1)
    with (tmp_path / "data").open("rb") as local:
        for _ in range(300):
            at, size = int(rng.integers(0, 5200)), int(rng.choice([0, 1, 50, 250, 2000]))
            if rng.random() < 0.5:
                assert remote.seek(at) == local.seek(at)
            if rng.random() < 0.5:
                assert remote.read(size) == local.read(size)
            else:
                one, other = bytearray(size), bytearray(size)
                assert remote.readinto(one) == local.readinto(other)
                assert one == other


def test_urls_are_names_of_places():
    place = place_of("save", "s3://bucket/run/ckpt-1/")
    assert isinstance(place, RemotePath)
    assert (str(place), place.name, str(place.parent), str(place / "x")) == (
        "s3://bucket/run/ckpt-1",
        "ckpt-1",
        "s3://bucket/run",
        "s3://bucket/run/ckpt-1/x",
    )
    assert str(RemotePath("s3://bucket").parent) == "s3://bucket"
    assert place_of("save", "file:///data/run") == place_of("save", pathlib.Path("/data/run")) == pathlib.Path("/data/run")
    assert place_of("save", b"run") == pathlib.Path("run")


NO_PLACES = {
    "s3:/bucket/a": r"save: 's3:/bucket/a' lacks a slash of its URL, which pathlib drops\. Pass the text: 's3://bucket/a'\.",
    "file:/data/a": r"save: 'file:/data/a' lacks a slash of its URL, which pathlib drops\. Pass the text: '/data/a'\.",
    "simplecache::memory://b/a": r"save: 'simplecache::memory://b/a' has '::', with which fsspec chains several .*",
    "memory://b/a::c/d": r"save: 'memory://b/a::c/d' has '::', with which .* Name the store alone, and a folder without '::'\.",
    "s3://": r"save: 's3://' names no bucket\. Write s3://bucket/name, say\.",
    "gs:///a": r"save: 'gs:///a' names no bucket\. Write gs://bucket/name, say\.",
}


@pytest.mark.parametrize("text", NO_PLACES)
def test_what_is_not_the_url_of_a_folder_is_none_on_this_machine_either(text):
    with pytest.raises(CheckpointError, match=f"^{NO_PLACES[text]}$"):
        place_of("save", text)


def test_a_path_that_was_a_url_says_what_to_pass():
    with pytest.raises(CheckpointError, match=r"^Checkpoint\.save: file_prefix: .*Path\('s3:/b/a'\) lacks .* text: 's3://b/a'\.$"):
        Checkpoint(x=1).save(pathlib.Path("s3://b/a"))


def test_names_of_checkpoints_never_chain_file_systems(system):
    with pytest.raises(ConfigurationError, match=r"^'memory://bucket/run/a::b-1.*' has '::', .* Choose a name without it\.$"):
        CheckpointManager(Checkpoint(x=1), URL, 2, checkpoint_name="a::b").save()
    assert below(system) == []


def test_a_store_without_buckets_has_checkpoints_at_its_root(system):
    try:
        path = Checkpoint(x=1).save("memory:///ckpt")
        assert latest_checkpoint("memory://") == path == "memory:///ckpt-1"
        with CheckpointManager(Checkpoint(x=1), "memory://", 1) as manager:
            assert manager.save() == "memory:///ckpt-2"
        assert latest_checkpoint("memory:///") == "memory:///ckpt-2"
    finally:
        system.rm("/ckpt-2", recursive=True)
