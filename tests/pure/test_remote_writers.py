"""Logs, record files and vocabularies at URLs: what a local file would hold; failures of the store."""

import contextlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from functools import partial
from pathlib import Path

import fsspec
import keras
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tensorboardX.proto.event_pb2 import Event

from replicant import MirroredStrategy, ParameterServerStrategy
from replicant.coordinator import ClusterCoordinator, StatsWriter
from replicant.data import Dataset, TFRecordDataset, TFRecordWriter
from replicant.errors import ArgumentError
from replicant.keras.callbacks import TensorBoard
from replicant.keras.layers import StringLookup
from replicant.storage import _copied, _read_ahead
from replicant.storage._copied import StoreCopy
from replicant.summary import create_file_writer, scalar
from replicant.summary._event_file import EventFile

PUT = MemoryFileSystem.pipe_file


@pytest.fixture
def system(monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.5")
    system = fsspec.filesystem("memory")
    yield system
    if system.exists("/writers"):
        system.rm("/writers", recursive=True)


@pytest.fixture
def broken(monkeypatch):
    """``broken.append(True)`` breaks the store."""
    broken = []

    def put(self, path, value, **rest):
        if broken:
            raise ConnectionResetError("cut")
        return PUT(self, path, value, **rest)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", put)
    return broken


def events(url):
    (name,) = Dataset.list_files(f"{url}/events.out.tfevents.*", shuffle=False)
    found = []
    for record in TFRecordDataset(name):
        event = Event.FromString(record)
        found += [(value.tag, event.step, tuple(value.tensor.float_val)) for value in event.summary.value]
    return found


def test_a_log_at_a_url_holds_what_was_written(system):
    writer = create_file_writer("memory://writers/logs")
    with writer.as_default():
        scalar("loss", 0.5, step=1)
    deadline = time.monotonic() + 20
    while not system.exists("/writers/logs") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert events("memory://writers/logs") == [("loss", 1, (0.5,))]
    with writer.as_default():
        scalar("loss", 0.25, step=2)
    writer.close()
    assert events("memory://writers/logs") == [("loss", 1, (0.5,)), ("loss", 2, (0.25,))]


@pytest.mark.long
def test_tensorboard_at_a_url_writes_what_it_writes_locally(system, tmp_path):
    for folder in (str(tmp_path), "memory://writers/fit/"):
        keras.backend.clear_session()
        with MirroredStrategy(["cpu:0", "cpu:1"]).scope():
            model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", "mse")
        x, y = np.ones((8, 3)), np.ones(8)
        model.fit(x, y, epochs=2, verbose=0, validation_data=(x, y), callbacks=[TensorBoard(folder, histogram_freq=1)])
    timed = {"epoch_steps_per_second", "examples_per_second", "input_wait_share"}
    for run in ("train", "validation"):
        local, remote = (
            [each for each in events(f"{folder}/{run}") if each[0] not in timed]
            for folder in (str(tmp_path), "memory://writers/fit")
        )
        assert len(local) > 3
        assert [each[:2] for each in local] == [each[:2] for each in remote]
    assert {name.rpartition("/")[0] for name in system.find("/writers/fit")} == {"/writers/fit/train", "/writers/fit/validation"}


def test_statistics_of_a_coordinator_at_a_url(system, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    strategy = ParameterServerStrategy(transport="threads")
    with StatsWriter(ClusterCoordinator(strategy), "memory://writers/stats/") as writer:
        writer.write(step=1)
    strategy.close()
    assert ("dropped_closures", 1, (0.0,)) in events("memory://writers/stats/coordinator")
    assert not list(tmp_path.iterdir())


def test_uploads_are_rare_and_hold_all_of_the_file(system, tmp_path, monkeypatch):
    file = tmp_path / "log"
    file.write_bytes(b"one ")
    copy = StoreCopy(file, "memory://writers/log")
    copy.update()
    copy._sending.done.wait(10)
    assert system.cat("/writers/log") == b"one "
    file.write_bytes(b"one two ")
    copy.update()
    assert system.cat("/writers/log") == b"one "  # less than 30 s ago
    monkeypatch.setattr(_copied, "_SECONDS", 0.0)
    copy._next = 0.0
    copy.update()
    copy._sending.done.wait(10)
    assert system.cat("/writers/log") == b"one two "
    file.write_bytes(b"one two three")
    copy.finish()
    assert system.cat("/writers/log") == b"one two three"
    assert not file.exists()


def test_a_store_that_is_away_is_a_warning_and_the_log_stays(system, broken, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken.append(True)
    writer = create_file_writer("memory://writers/logs")
    with writer.as_default():
        scalar("loss", 0.5, step=1)
    copy = writer._file._copy
    copy._sending.done.wait(10)
    copy._next = 0.0
    with pytest.warns(UserWarning, match=r"could not write memory://writers/logs/events.* cut\. It is tried again, at the latest"):
        writer.flush()
    with pytest.warns(UserWarning, match=r"could not write memory://.* cut\. What it would hold is in '(.*)': copy it") as told:
        writer.close()
    left = Path(re.search(r"is in '(.*)':", str(told[0].message))[1])
    assert Event.FromString(list(TFRecordDataset(left))[1]).summary.value[0].tag == "loss"
    assert not system.exists("/writers")


def test_a_store_that_comes_back_has_the_whole_log(system, broken):
    broken.append(True)
    writer = create_file_writer("memory://writers/logs")
    with writer.as_default():
        scalar("loss", 0.5, step=1)
    writer._file._copy._sending.done.wait(10)
    broken.clear()
    with warnings.catch_warnings(action="error"):
        writer.close()
    assert events("memory://writers/logs") == [("loss", 1, (0.5,))]


def test_a_log_whose_local_file_is_removed_is_one_warning(system, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    writer = create_file_writer("memory://writers/logs")
    with writer.as_default():
        scalar("loss", 0.5, step=1)
    copy = writer._file._copy
    assert copy._sending.done.wait(10)
    shutil.rmtree(copy.file.parent)
    copy._next = 0.0
    with pytest.warns(UserWarning, match=r"^the log memory://writers/logs/events.* ends here, because .* No such file .*TMPDIR"):
        writer.flush()
    with warnings.catch_warnings(action="error"), writer.as_default():
        scalar("loss", 0.25, step=2)
        writer.flush()
        writer.close()
    assert events("memory://writers/logs") == [("loss", 1, (0.5,))]


@pytest.fixture
def small_disk():
    """A limit for the size of files stands for the end of the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_without_room_ends_a_log_at_a_url_with_one_warning(system, tmp_path, monkeypatch, small_disk):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = EventFile("memory://writers/logs")
    file.scalar("loss", 0.5, step=1)
    file.flush()
    with pytest.warns(UserWarning, match=r"^the log memory://writers/logs/events.* ends here, .* File too large\..*TMPDIR"):
        file.text("long", "a" * 9_000_000, step=2)
    with warnings.catch_warnings(action="error"):
        file.flush()
        file.scalar("loss", 0.25, step=3)
        file.close()
    (name,) = Dataset.list_files("memory://writers/logs/*", shuffle=False)
    first = list(TFRecordDataset(name).take(2))[1]
    assert Event.FromString(first).summary.value[0].tag == "loss"
    assert not list(tmp_path.iterdir())


def test_a_disk_without_room_is_an_error_for_a_local_log(tmp_path, small_disk):
    file = EventFile(tmp_path)
    with pytest.raises(OSError, match="File too large"):
        file.text("long", "a" * 9_000_000, step=1)
    file._writer._py_recordio_writer._writer.raw.close()  # otherwise its end tries again


FORKED = """
import os, sys, threading
from fsspec.implementations.memory import MemoryFileSystem
from replicant.data import Dataset, TFRecordDataset
from replicant.summary import create_file_writer, scalar

put, go_on = MemoryFileSystem.pipe_file, threading.Event()
def later(self, *args, **kwargs):
    go_on.wait(30)
    return put(self, *args, **kwargs)
MemoryFileSystem.pipe_file = later

if sys.argv[1] == "done":
    go_on.set()
writer = create_file_writer("memory://forked")
writer.set_as_default()
scalar("loss", 0.5, step=1)
writer.flush()
assert writer._file._copy._sending.done.wait(10 if sys.argv[1] == "done" else 0) == (sys.argv[1] == "done")
scalar("loss", 0.5, step=2)
child = os.fork()
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
go_on.set()
scalar("loss", 0.5, step=3)
writer.close()
(name,) = Dataset.list_files("memory://forked/*", shuffle=False)
print(len(list(TFRecordDataset(name))))
"""


@pytest.mark.parametrize("upload", ["done", "on its way"])
@pytest.mark.long
def test_a_forked_child_that_ends_leaves_the_log_alone(upload):
    program = [sys.executable, "-W", "ignore", "-c", FORKED, upload]
    ended = subprocess.run(program, timeout=25, check=True, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("4\n", "")  # the head of the file, and a record for each summary


def test_a_profile_needs_a_local_folder():
    with pytest.raises(ArgumentError, match=r"^TensorBoard: profile_batch=2 writes a profile.*got 'memory://writers/logs'\."):
        TensorBoard("memory://writers/logs", profile_batch=2)


@pytest.mark.parametrize("make", [TFRecordWriter, TensorBoard, create_file_writer, partial(StatsWriter, None)])
def test_paths_that_were_urls_are_told(make):
    with pytest.raises(ArgumentError, match=r"lacks a slash of its URL, which pathlib drops\. Pass the text: 's3://bucket/a'"):
        make(Path("s3://bucket/a"))
    with pytest.raises(ArgumentError, match=r"'s3://' names no bucket\. Write s3://bucket/name, say\."):
        make("s3://")


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_record_files_are_those_of_local_files(system, tmp_path, compression):
    records = [bytes([i]) * (i * 37 % 900 if i % 50 else 70_000) for i in range(200)]
    for path in (tmp_path / "a", "memory://writers/a"):
        with TFRecordWriter(path, compression) as writer:
            for record in records:
                writer.write(record)
            writer.flush()
            assert not system.exists("/writers/a")
    assert list(TFRecordDataset("memory://writers/a", compression)) == records
    if not compression:
        assert system.cat("/writers/a") == (tmp_path / "a").read_bytes()
    with pytest.raises(ArgumentError, match="the writer is closed"):
        writer.write(b"")


@pytest.mark.long
def test_small_records_take_little_more_memory_than_their_bytes(system):
    records, size = 100_000, 24
    tracemalloc.start()
    try:
        with TFRecordWriter("memory://writers/a") as writer:
            for _ in range(records):
                writer.write(b"x" * (size - 16))  # beside the length and two checksums
            held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert system.size("/writers/a") == records * size
    assert held < 1.5 * records * size


def test_a_record_file_without_an_end_does_not_exist(system):
    writer = TFRecordWriter("memory://writers/a")
    with contextlib.suppress(ZeroDivisionError), writer:
        writer.write(b"first")
        _ = 1 / 0
    assert not system.exists("/writers/a")
    with pytest.raises(ArgumentError, match="the writer is closed"):
        writer.write(b"second")
    writer.close()


def test_a_record_file_that_nobody_closes_is_a_warning(system):
    writer = TFRecordWriter("memory://writers/a")
    writer.write(b"first")
    with pytest.warns(UserWarning, match=r"^memory://writers/a was never closed, so there is no object\. Close its writer, or"):
        del writer
    assert not system.exists("/writers/a")
    with warnings.catch_warnings(action="error"):
        TFRecordWriter("memory://writers/b").close()
        writer = TFRecordWriter("memory://writers/c")
        writer._file.leave()
        del writer


def test_a_store_that_does_not_take_a_record_file_is_an_error(system, broken):
    broken.append(True)
    writer = TFRecordWriter("memory://writers/a")
    writer.write(b"first")
    with pytest.raises(OSError, match=r"could not write memory://writers/a.* cut"):
        writer.close()
    writer.close()
    assert not system.exists("/writers/a")


def test_a_vocabulary_at_a_url(system):
    system.pipe("/writers/words", b"one\ntwo\nthree\n")
    layer = StringLookup(vocabulary="memory://writers/words")
    assert layer.get_vocabulary() == ["[UNK]", "one", "two", "three"]
    system.pipe("/writers/none", b"")
    with pytest.raises(ArgumentError, match=r"^a vocabulary must have at least one token"):
        StringLookup(vocabulary="memory://writers/none")
    with pytest.raises(ArgumentError, match=r"^the vocabulary file cannot be read: could not look at memory://writers/gone: File"):
        StringLookup(vocabulary="memory://writers/gone")


def test_a_vocabulary_that_is_too_long_for_one_request(system, monkeypatch):
    """A slow connection sends only so much within the share of the deadline that one request has."""
    monkeypatch.setattr(_read_ahead, "BLOCK", 1000)
    words = [f"word{i}" for i in range(2000)]
    system.pipe("/writers/words", "\n".join(words).encode())
    get = MemoryFileSystem.cat_file

    def slow(self, path, start=None, end=None, **rest):
        if (end or sys.maxsize) - (start or 0) > 1000:
            raise TimeoutError("no answer within 0.1 s")
        return get(self, path, start=start, end=end, **rest)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", slow)
    assert StringLookup(vocabulary="memory://writers/words").get_vocabulary() == ["[UNK]", *words]
