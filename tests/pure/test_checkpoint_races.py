"""Several writers of one checkpoint at a URL, also where the store does not decide, and writers that are taken for dead."""

import re
import threading
import time

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from replicant import Checkpoint, CheckpointManager, CheckpointOptions, latest_checkpoint, load_variable
from replicant.checkpoint.folders import _atomic_at_store, _atomic_folder, _lock_owner
from replicant.checkpoint.folders._locations import draft_name, place_of
from replicant.checkpoint.folders._lock_owner import Owner
from replicant.checkpoint.format import _storage
from replicant.checkpoint.format._parts import Parts
from replicant.checkpoint.workers import _chief
from replicant.checkpoint.workers._collective_save import Together
from replicant.errors import CheckpointError
from replicant.storage import _write
from replicant.storage._retry import RemoteError, retried
from replicant.storage._write import WritableStore

URL = "memory://races/run"
PUT = MemoryFileSystem.pipe_file


@pytest.fixture(autouse=True)
def system(monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "5")
    monkeypatch.setattr(_write, "_SETTLING_SECONDS", 0.3)
    monkeypatch.setattr(_atomic_at_store, "COLLECT_SECONDS", 0.0)
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/races"):
        system.rm("/races", recursive=True)


@pytest.fixture
def before_publishing(monkeypatch):
    """``before_publishing(do)`` calls ``do()`` once a writer has written everything but the manifest."""

    def before(do):
        def publish(draft, manifest):
            do()
            return _atomic_at_store.publish(draft, manifest)

        monkeypatch.setattr(_storage, "publish", publish)

    return before


def ignoring(self, path, value, mode="overwrite", **_):
    """A server, or a library before it, that drops the condition."""
    return PUT(self, path, value)


def looking_first(self, path, value, mode="overwrite", **_):
    """What fsspec itself does for file systems that know no better."""
    if mode == "create" and self.exists(path):
        raise FileExistsError(path)
    time.sleep(0.05)
    return PUT(self, path, value)


def without_mode(self, path, value):
    time.sleep(0.05)
    return PUT(self, path, value)


def rejecting(error):
    def put(self, path, value, mode="overwrite", **_):
        if mode == "create":
            raise error
        return PUT(self, path, value)

    return put


PUTS = {
    "ignoring": ignoring,
    "looking first": looking_first,
    "without mode": without_mode,
    "not implemented": rejecting(NotImplementedError("no")),
    "value": rejecting(ValueError("unsupported mode")),
    "501": rejecting(OSError(38, "A header you provided implies functionality that is not implemented.")),
    "400": rejecting(OSError(22, "Unsupported header")),
}


@pytest.mark.parametrize("kind", PUTS)
def test_of_two_writers_one_wins_where_the_store_does_not_decide(monkeypatch, before_publishing, kind):
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", PUTS[kind])
    if kind == "looking first":
        monkeypatch.setattr(MemoryFileSystem, "protocol", "other")  # its second create is refused, as if it could decide
    both, said = threading.Barrier(2), {}
    before_publishing(both.wait)

    def write(number):
        try:
            said[number] = Checkpoint(number=number).write(f"{URL}/final")
        except CheckpointError as error:
            said[number] = error

    threads = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    [lost] = [number for number, each in said.items() if isinstance(each, CheckpointError)]
    assert re.match(rf"{URL}/final already exists \(written by process", str(said[lost]))
    assert load_variable(f"{URL}/final", "number") == 3 - lost


def test_a_request_that_comes_late_leaves_a_whole_checkpoint(monkeypatch, system):
    """The first writer's manifest is on its way while the second one publishes, and replaces the second one's in the end."""
    late = []
    other = threading.Thread(target=lambda: Checkpoint(number=2).write(f"{URL}/final"))

    def slow(self, path, value):
        if path.endswith("manifest.json") and b'"value": "1"' in value and not late:
            late.append(lambda: PUT(self, path, value))
            other.start()
            other.join(10)
            raise ConnectionError("no answer")
        return PUT(self, path, value)

    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "60")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", slow)
    with pytest.raises(CheckpointError, match=f"{URL}/final already exists"):
        Checkpoint(number=1).write(f"{URL}/final")
    other.join()
    assert load_variable(f"{URL}/final", "number") == 2
    late[0]()
    assert load_variable(f"{URL}/final", "number") == 1


@pytest.mark.parametrize("code", ["PreconditionFailed", "412", 412])
def test_a_store_says_in_several_ways_that_an_object_exists(monkeypatch, code):
    class Refusal(OSError):
        def __init__(self):
            super().__init__(22, "At least one of the pre-conditions you specified did not hold")
            self.response = {"Error": {"Code": code}} if isinstance(code, str) else None
            self.code = code

    def refusing(self, path, value, mode="overwrite", **_):
        if mode == "create" and self.exists(path):
            raise OSError(22, "refused") from Refusal()
        return PUT(self, path, value)

    store = WritableStore(f"{URL}/one")
    store.put(b"first")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refusing)
    assert store.refuses_a_second(b"second")
    assert store.get() == b"first"
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", ignoring)
    assert not store.refuses_a_second(b"second")


def as_another_program_after(monkeypatch, seconds, do):
    """Call ``do()`` on another computer, so many seconds later."""
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(Owner, "current", classmethod(lambda cls: Owner("other", "boot", 1, 1)))
        patch.setattr(_atomic_at_store.time, "time", lambda: now + seconds)
        do()


COLLECTED = (
    r"^The files of memory://races/run/ckpt-1 were removed by another program, because nothing had been written for a day, as if "
    r"this one had died\. Save again\.$"
)


def test_a_writer_whose_files_were_collected_is_told_and_leaves_nothing(monkeypatch, before_publishing, system):
    def suspended():
        monkeypatch.setattr(_storage, "publish", _atomic_at_store.publish)
        as_another_program_after(monkeypatch, 25 * 3600, lambda: Checkpoint(x=5).write(f"{URL}/ckpt-9"))

    before_publishing(suspended)
    with pytest.raises(CheckpointError, match=COLLECTED):
        Checkpoint(x=np.arange(4)).write(f"{URL}/ckpt-1")
    assert latest_checkpoint(URL) == f"{URL}/ckpt-9"
    assert not system.exists("/races/run/ckpt-1")
    assert Checkpoint(x=7).write(f"{URL}/ckpt-1") == f"{URL}/ckpt-1"


@pytest.mark.parametrize("published", ["before its mark is removed", "after its mark was removed"])
def test_files_of_a_writer_that_publishes_during_the_collection(monkeypatch, before_publishing, system, published):
    """The collector has seen no manifest, and then the writer publishes: either the files stay, or the writer is told."""
    removing, go_on = threading.Event(), threading.Event()
    unlink, told = _atomic_at_store.RemotePath.unlink, None

    def collect():
        as_another_program_after(
            monkeypatch, 25 * 3600, lambda: _atomic_at_store.collect_garbage(_atomic_at_store.RemotePath(f"{URL}/ckpt-9"))
        )

    def slow(self):
        if self.name == "writer.json" and threading.current_thread() is collector:
            if published.startswith("after"):
                unlink(self)
            removing.set()
            go_on.wait(10)
        unlink(self)

    collector = threading.Thread(target=collect)
    monkeypatch.setattr(_atomic_at_store.RemotePath, "unlink", slow)
    before_publishing(lambda: (collector.start(), removing.wait(10)))
    try:
        Checkpoint(x=np.arange(4)).write(f"{URL}/ckpt-1")
    except CheckpointError as error:
        told = error
    go_on.set()
    collector.join()
    if published.startswith("before"):
        assert told is None
        assert load_variable(f"{URL}/ckpt-1", "x").tolist() == [0, 1, 2, 3]
    else:
        assert re.match(COLLECTED, str(told))
        assert not system.exists("/races/run/ckpt-1")


def test_a_computer_that_does_not_tell_boots_apart_takes_nobody_for_dead(monkeypatch, tmp_path, system):
    """Another one with its name cannot be told from it, and its process numbers mean nothing here."""
    monkeypatch.setattr(_lock_owner, "_boot", lambda: "")
    twin = f"{Owner.current().machine}-4194305-7-00000000"  # no process can have this number
    system.pipe(f"/races/run/ckpt-1/files-{twin}/arrays.bin", b"x")
    folder = tmp_path / f".ckpt-1.{twin}.partial"
    folder.mkdir()
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(_atomic_at_store.time, "time", lambda: now + 3600)
        Checkpoint(x=5).write(f"{URL}/ckpt-9")
        Checkpoint(x=5).write(tmp_path / "ckpt-9")
    assert system.exists(f"/races/run/ckpt-1/files-{twin}/arrays.bin")
    assert folder.exists()
    monkeypatch.setattr(_atomic_folder.time, "time", lambda: now + 25 * 3600)
    Checkpoint(x=5).write(f"{URL}/ckpt-10")
    Checkpoint(x=5).write(tmp_path / "ckpt-10")
    assert not system.exists("/races/run/ckpt-1")
    assert not folder.exists()


def test_a_manager_goes_on_after_another_program_was_faster():
    first, second = CheckpointManager(Checkpoint(x=1), URL, 5), CheckpointManager(Checkpoint(x=2), URL, 5)
    for number in range(1, 5):
        assert first.save() == f"{URL}/ckpt-{number}"
    with pytest.raises(CheckpointError, match="ckpt-1 already exists"):
        second.save()
    assert second.save() == f"{URL}/ckpt-5"
    assert second.save() == f"{URL}/ckpt-6"
    assert [load_variable(f"{URL}/ckpt-{number}", "x") for number in (4, 5, 6)] == [1, 2, 2]


@pytest.mark.parametrize("background", [False, True])
def test_a_manager_goes_on_after_a_manifest_was_not_confirmed(monkeypatch, background):
    whole, away = WritableStore.put_if_absent, [RemoteError("the store is away")]

    def unconfirmed(self, data, **how):
        whole(self, data, **how)
        if away:
            raise away.pop()
        return True

    monkeypatch.setattr(WritableStore, "put_if_absent", unconfirmed)
    options = CheckpointOptions(enable_async=background)
    with CheckpointManager(Checkpoint(x=1), URL, 2) as manager:
        with pytest.raises(CheckpointError, match="It is not known whether the checkpoint memory://races/run/ckpt-1 exists"):
            manager.save(options=options), manager.sync()
        assert [manager.save(options=options) for _ in range(2)] == [f"{URL}/ckpt-2", f"{URL}/ckpt-3"]


@pytest.mark.parametrize("background", [False, True])
def test_what_could_not_be_deleted_is_told_and_deleted_after_the_next_save(monkeypatch, system, background):
    def failing(self, path):
        raise ConnectionError("away")

    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    options = CheckpointOptions(enable_async=background)
    with CheckpointManager(Checkpoint(x=1), URL, 1) as manager:
        manager.save(options=options)
        manager.sync()
        with monkeypatch.context() as patch:
            patch.setattr(MemoryFileSystem, "rm_file", failing)
            told = r"The old checkpoint memory://races/run/ckpt-1 could not be deleted: could not delete .*manifest\.json .*away"
            with pytest.warns(UserWarning, match=told):
                manager.save(options=options), manager.sync()
        assert manager.checkpoints == [f"{URL}/ckpt-1", f"{URL}/ckpt-2"]
        assert manager.save(options=options) == f"{URL}/ckpt-3"
        assert manager.checkpoints == [f"{URL}/ckpt-3"]
    assert {name.split("/")[3] for name in system.find("/races/run")} == {"ckpt-3"}


def test_a_writer_that_cannot_sign_leaves_nothing(monkeypatch, system):
    """The store has its mark, but the answers are lost."""

    def losing(self, path, value, mode="overwrite", **_):
        PUT(self, path, value)
        raise ConnectionError("the answer was lost")

    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", losing)
    with pytest.raises(CheckpointError, match=r"could not be written \(could not write .*writer\.json .*\)\. None of it is used\."):
        Checkpoint(x=1).write(f"{URL}/ckpt-1")
    assert system.find("/races") == []


class Workers:
    """What a checkpoint needs of the workers, for threads."""

    num_processes, seconds = 2, 600.0

    def __init__(self, rank, said):
        self.process_id, self.is_chief, self.said = rank, rank == 0, said
        self.exchange = self

    def name_of(self, rank):
        return f"worker {rank}"

    def collect(self, name, number, label, text, timeout_seconds=None, *, advice=""):
        with self.said[None]:
            self.said.setdefault(number, {})[self.process_id] = text
            self.said[None].notify_all()
            assert self.said[None].wait_for(lambda: len(self.said[number]) == 2, 20)
        return [self.said[number][rank] for rank in range(2)]


@pytest.mark.parametrize(("path", "advice"), [(f"{URL}/ckpt-1", ""), ("run/ckpt-1", " The others can read it: .* folder\\.")])
def test_workers_share_a_store_in_any_case(monkeypatch, path, advice):
    class World(Workers):
        def __call__(self, label, text, **_):
            return [text, "null"]

    def read():
        raise CheckpointError("could not read it.")

    monkeypatch.setattr(_chief._bootstrap, "world", lambda: World(0, {}))
    message = rf"1 of 2 workers cannot read the checkpoint {path}\. worker 0: could not read it\.{advice}"
    with pytest.raises(CheckpointError, match=f"^{message}$"):
        _chief.all_read("opened", path, read)


def test_other_workers_hear_that_it_is_not_known_and_nothing_else(monkeypatch):
    meta = {"save_counter": 1, "saved_at": 1.0, "num_extra_arrays": 0, "objects": {}, "extra": {}, "numbers": {}, "states": {}}
    path = place_of("write", f"{URL}/ckpt-1")
    folder, said, raised = draft_name(path), {None: threading.Condition()}, {}
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    monkeypatch.setattr(WritableStore, "put_if_absent", lambda self, data, **_: retried("write", self.url, lambda _: 1 / 0))

    def write(rank):
        with pytest.raises(CheckpointError) as error:
            Together(Workers(rank, said), path, folder).write({**meta, "random_keys": {}, "copies": {}}, {}, Parts({}, fetch=False))
        raised[rank] = str(error.value)

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    unknown = r"It is not known whether the checkpoint memory://races/run/ckpt-1 exists, .*division by zero\)\. If .* it is whole\."
    assert re.fullmatch(unknown, raised[0])
    assert re.fullmatch(
        rf"Not all workers could write the checkpoint memory://races/run/ckpt-1\. worker 0: CheckpointError: {unknown}", raised[1]
    )
