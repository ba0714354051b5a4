"""Checkpoints on a server that answers as S3 does, also behind a proxy that fails at random, and with writers that are killed."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import fsspec
import jax
import keras
import numpy as np
import pytest

import replicant
from replicant import Checkpoint, CheckpointManager, CheckpointOptions, latest_checkpoint, list_variables, load_variable
from replicant.checkpoint.folders import _atomic_at_store
from replicant.errors import CheckpointError
from replicant.storage import _upload, _write
from replicant.storage._write import WritableStore

from ._object_store import in_front_of, s3_server


@pytest.fixture(scope="module")
def port():
    with s3_server() as port:
        yield port


@pytest.fixture
def at(monkeypatch):
    """``at(port)`` makes s3:// URLs mean the server at this port, and returns the file system."""

    def at(port):
        monkeypatch.setitem(fsspec.config.conf, "s3", options(port))
        return fsspec.filesystem("s3", use_listings_cache=False, **options(port))

    return at


def options(port):
    return {"endpoint_url": f"http://127.0.0.1:{port}", "key": "key", "secret": "secret"}


@pytest.fixture
def url(port, at, request):
    """A folder in a bucket of the test's own."""
    bucket = f"checkpoints-{abs(hash(request.node.name))}"
    at(port).mkdir(bucket)
    return f"s3://{bucket}/a run"


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(_upload, "PART", 5 << 20)  # the least that S3 takes


WEIGHTS = np.random.default_rng(0).normal(size=1_600_000)  # 13 MB


@pytest.mark.long
def test_a_checkpoint_in_several_parts_comes_back(url, port, at, small_parts):
    checkpoint = Checkpoint(weights=WEIGHTS.copy(), step=3)
    with CheckpointManager(checkpoint, url, 2) as manager:
        for _ in range(3):
            manager.save(options=CheckpointOptions(enable_async=True))
        assert manager.checkpoints == [f"{url}/ckpt-2", f"{url}/ckpt-3"]
    assert latest_checkpoint(url) == f"{url}/ckpt-3"
    checkpoint.weights, checkpoint.step = np.zeros_like(WEIGHTS), 0
    checkpoint.restore(f"{url}/ckpt-2").assert_consumed()
    assert np.array_equal(checkpoint.weights, WEIGHTS)
    assert checkpoint.step == 3
    system = at(port)
    assert len(system.find(url)) == 6
    assert uploads(system, url) == []


def uploads(system, url):
    return system.call_s3("list_multipart_uploads", Bucket=url.split("/")[2]).get("Uploads") or []


@pytest.mark.parametrize("lost", [ConnectionError("the answer was lost"), KeyboardInterrupt()], ids=["lost", "interrupted"])
@pytest.mark.long_cases("lost")
def test_an_upload_whose_answer_was_lost_does_not_stay(url, port, at, small_parts, monkeypatch, lost):  # noqa: PLR0917
    system, whole, left = at(port), _upload.Upload._call, [lost]

    def losing(self, method, seconds, **arguments):
        answer = whole(self, method, seconds, **arguments)
        if method == "create_multipart_upload" and left:
            assert len(uploads(system, url)) == 1
            raise left.pop()
        return answer

    monkeypatch.setattr(_upload.Upload, "_call", losing)
    with pytest.raises(KeyboardInterrupt) if isinstance(lost, KeyboardInterrupt) else contextlib.nullcontext():
        Checkpoint(weights=WEIGHTS).write(f"{url}/ckpt-1")
    assert uploads(system, url) == []
    assert len(system.find(url)) == (0 if isinstance(lost, KeyboardInterrupt) else 3)


def test_all_uploads_of_a_process_have_a_few_parts_in_memory(url, port, at, monkeypatch):
    at(port)
    lock, now, most = threading.Lock(), set(), []

    def call(self, method, seconds, **arguments):
        if method == "upload_part":
            part = (self.store.url, arguments["PartNumber"])
            with lock:
                now.add(part)
                most.append(len(now))
            time.sleep(0.02)
            with lock:
                now.remove(part)
        return {"UploadId": "1", "ETag": "x"}

    def write(number):
        with _upload.Upload(f"{url}/{number}") as upload:
            for _ in range(30):
                upload.write(bytes(500))

    monkeypatch.setattr(_upload, "PART", 1000)
    monkeypatch.setattr(_upload.Upload, "_call", call)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(most) == 60
    assert 2 <= max(most) <= _upload.AT_ONCE


WRITER = """
import sys
import fsspec, numpy as np
fsspec.config.conf["s3"] = {{"endpoint_url": "http://127.0.0.1:{port}", "key": "key", "secret": "secret"}}
from replicant import Checkpoint
from replicant.errors import CheckpointError
checkpoint = Checkpoint(value={value}, weights=np.full(1_000_000, {value}.0))
print("ready", flush=True)
sys.stdin.readline()
try:
    print(checkpoint.write("{url}/{name}"), flush=True)
except CheckpointError as error:
    print(error, flush=True)
"""


ENDING = """
import time
import fsspec
fsspec.config.conf["s3"] = {{"endpoint_url": "http://localhost:{port}", "key": "key", "secret": "secret"}}
from replicant import Checkpoint, CheckpointOptions
from replicant.checkpoint.format import _storage
write = _storage.write
_storage.write = lambda *arguments: (time.sleep(1.0), write(*arguments))
Checkpoint(value=3).write("{url}/last", CheckpointOptions(enable_async=True))
"""


@pytest.mark.long
def test_a_write_in_the_background_goes_on_while_the_program_ends(url, port):
    """Its first request comes when the main thread has ended, and names the host instead of its address."""
    program = [sys.executable, "-c", ENDING.format(port=port, url=url)]
    ended = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert load_variable(f"{url}/last", "value") == 3


@contextlib.contextmanager
def writers(*programs):
    """Processes that wait for a line before they write."""
    pipe = subprocess.PIPE
    running = [subprocess.Popen([sys.executable, "-c", each], stdin=pipe, stdout=pipe, text=True) for each in programs]
    try:
        for each in running:
            assert each.stdout.readline() == "ready\n"
        yield running
    finally:
        for each in running:
            each.kill()
            each.wait()
            each.stdin.close()
            each.stdout.close()


@pytest.mark.slow
def test_of_two_processes_that_write_one_number_one_wins(url, port):
    programs = [WRITER.format(port=port, url=url, name="final", value=value) for value in (1, 2)]
    with writers(*programs) as running:
        for each in running:
            each.stdin.write("go\n")
            each.stdin.flush()
        said = [each.stdout.readline().strip() for each in running]
    [lost] = [number for number, text in enumerate(said) if text != f"{url}/final"]
    winner = running[1 - lost].pid
    assert re.match(
        rf"{url}/final already exists \(written by process {winner} on .*\), and a checkpoint is never overwritten", said[lost]
    )
    assert load_variable(f"{url}/final", "value") == 2 - lost
    assert load_variable(f"{url}/final", "weights").tolist() == [2.0 - lost] * 1_000_000


@pytest.mark.parametrize(("conditions", "decides"), [("kept", True), ("dropped", False), ("rejected", False)])
@pytest.mark.long
def test_a_server_without_conditions_is_found_out_and_can_be_saved_to(url, port, at, monkeypatch, conditions, decides):  # noqa: PLR0917
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "20")
    monkeypatch.setattr(_write, "_SETTLING_SECONDS", 0.1)
    with in_front_of(port) as proxy:
        proxy.conditions = conditions
        at(proxy.server_address[1])
        store = WritableStore(f"{url}/one")
        store.put(b"first")
        assert store.refuses_a_second(b"second") == decides
        assert store.get() == (b"second" if conditions == "dropped" else b"first")
        assert load_variable(Checkpoint(x=7).save(f"{url}/ckpt"), "x") == 7
        with pytest.raises(CheckpointError, match="already exists"):
            Checkpoint(x=8).write(f"{url}/ckpt-1")


@pytest.mark.slow
def test_what_a_killed_writer_left_counts_for_nothing_and_is_removed(url, port, at, monkeypatch):
    Checkpoint(value=0).write(f"{url}/ckpt-1")
    system = at(port)
    with in_front_of(port, stall=60.0) as proxy:
        proxy.fate = lambda: "fine" if not system.find(f"{url}/ckpt-2") else "stalled"  # it hangs once it has begun
        program = WRITER.format(port=proxy.server_address[1], url=url, name="ckpt-2", value=7)
        with writers(program) as [running]:
            running.stdin.write("go\n")
            running.stdin.flush()
            deadline = time.monotonic() + 60
            while not system.find(f"{url}/ckpt-2") and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
    left = system.find(f"{url}/ckpt-2")
    assert left
    assert not any(name.endswith("manifest.json") for name in left)
    assert latest_checkpoint(url) == f"{url}/ckpt-1"
    now = time.time()
    monkeypatch.setattr(_atomic_at_store, "COLLECT_SECONDS", 0.0)
    monkeypatch.setattr(_atomic_at_store.time, "time", lambda: now + 120)
    assert Checkpoint(value=1).save(f"{url}/ckpt") == f"{url}/ckpt-3"
    assert system.find(f"{url}/ckpt-2") == []
    assert load_variable(latest_checkpoint(url), "value") == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_fails_at_random_changes_nothing(url, port, at, monkeypatch, seed, chaos, small_parts):  # noqa: PLR0917
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "60")
    with in_front_of(port, chaos.seed + seed, troubles=0.2, stall=25.0) as proxy:
        at(proxy.server_address[1])
        checkpoint = Checkpoint(weights=WEIGHTS.copy(), step=seed)
        with CheckpointManager(checkpoint, url, 1) as manager:
            for _ in range(3):
                checkpoint.step += 1
                manager.save(options=CheckpointOptions(enable_async=True))
            assert manager.checkpoints == [f"{url}/ckpt-3"]
        checkpoint.weights, checkpoint.step = np.zeros_like(WEIGHTS), 0
        assert manager.restore_or_initialize() == f"{url}/ckpt-3"
        assert sum(proxy.counts.values()) > proxy.counts["fine"] > 0, proxy.counts
    assert np.array_equal(checkpoint.weights, WEIGHTS)
    assert checkpoint.step == seed + 3
    system = at(port)
    assert len(system.find(url)) == 3


@pytest.mark.slow
def test_a_server_that_always_fails_is_an_error_at_the_deadline(url, port, at, monkeypatch):
    Checkpoint(x=1).save(f"{url}/ckpt")
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "2")
    with in_front_of(port) as proxy:
        proxy.fate = lambda: "500"
        at(proxy.server_address[1])
        start = time.monotonic()
        for do in (
            lambda: Checkpoint(x=1).save(f"{url}/ckpt"),
            lambda: latest_checkpoint(url),
            lambda: list_variables(f"{url}/ckpt-1"),
        ):
            with pytest.raises(CheckpointError, match=rf"could not (list|look at|read) {url}.* after \d+ attempts in \d\.\d s"):
                do()
        assert time.monotonic() - start < 60


def sharded(devices):
    with replicant.FullyShardedStrategy(devices, min_size=8).scope():
        return keras.Sequential([keras.Input((64,)), keras.layers.Dense(1024)])


def test_slices_are_restored_on_other_devices_by_their_ranges(url, port, at):
    model = sharded(["cpu:0", "cpu:1"])
    kernel = np.random.default_rng(1).normal(size=(64, 1024)).astype("float32")
    model.layers[0].kernel.assign(kernel)
    path = Checkpoint(model=model).save(f"{url}/ckpt")
    names = sorted(name.rpartition("/")[2] for name in at(port).find(path))
    assert names == ["arrays.bin", "manifest.json", "slices-0.bin", "slices-1.bin", "writer.json"]
    other = sharded([f"cpu:{i}" for i in range(4)])
    Checkpoint(model=other).restore(path).assert_consumed()
    assert np.array_equal(np.asarray(other.layers[0].kernel), kernel)
    assert len(jax.devices("cpu")) >= 4
