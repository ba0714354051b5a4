"""Files at URLs: the same elements, positions and plans as for local files; changes; requests that fail; the cache of a host."""

import datetime as dt
import fcntl
import gzip
import io
import itertools
import json
import pathlib
import subprocess
import sys
import threading
import time
from typing import ClassVar

import fsspec
import numpy as np
import pytest
import tensorboardX  # noqa: F401 - here, because it sets an environment variable when it is first imported
from fsspec.implementations.memory import MemoryFileSystem

from replicant import Watchdog
from replicant.data import (
    CsvDataset,
    Dataset,
    FixedLengthRecordDataset,
    TextLineDataset,
    TFRecordDataset,
    TFRecordWriter,
    make_csv_dataset,
)
from replicant.errors import ArgumentError, ConfigurationError, DatasetError
from replicant.input.transforms._pipeline_fingerprint import fingerprint
from replicant.storage import _read_ahead, _retry, _store
from replicant.storage._cache import BlockCache, block_cache
from replicant.storage._retry import RemoteError, retried
from replicant.storage._store import Facts, Store


@pytest.fixture
def store(tmp_path):
    """A folder of a store in memory, beside a local one with the same files."""
    folder = Folder(tmp_path / "local", "memory://bucket/of a test")
    folder.local.mkdir()
    yield folder
    if fsspec.filesystem("memory").exists("/bucket"):
        fsspec.filesystem("memory").rm("/bucket", recursive=True)


class Folder:
    def __init__(self, local, url):
        self.local, self.url = local, url

    def put(self, name, data):
        (self.local / name).write_bytes(data)
        fsspec.filesystem("memory").pipe(f"{self.url.removeprefix('memory:/')}/{name}", data)
        return str(self.local / name), f"{self.url}/{name}"

    def records(self, name, records):
        with TFRecordWriter(self.local / name) as writer:
            for record in records:
                writer.write(record)
        return self.put(name, (self.local / name).read_bytes())


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(_read_ahead, "BLOCK", 1000)


RECORDS = [bytes([i]) * (i * 7 % 90) for i in range(100)]
TEXT = "".join(f"{i},{i / 7},name{i}\n" for i in range(300)).encode()


def same(one, other):
    one, other = list(one), list(other)
    assert len(one) == len(other) > 0
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


READERS = {
    "records": (lambda store: store.records("a", RECORDS), TFRecordDataset),
    "lines": (lambda store: store.put("a", TEXT), TextLineDataset),
    "gzip": (lambda store: store.put("a", gzip.compress(TEXT)), lambda name: TextLineDataset(name, "GZIP")),
    "fixed": (lambda store: store.put("a", TEXT[:2004]), lambda name: FixedLengthRecordDataset(name, 10, 1, 3)),
    "csv": (lambda store: store.put("a", TEXT), lambda name: CsvDataset(name, ["int32", "float32", str])),
    "parallel": (lambda store: store.put("a", TEXT), lambda name: TextLineDataset([name, name], num_parallel_reads=2)),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reader", READERS)
def test_elements_are_those_of_local_files(store, reader):
    make, dataset = READERS[reader]
    local, url = make(store)
    same(dataset(url), dataset(local))
    same(dataset(url).skip(30).repeat(2), dataset(local).skip(30).repeat(2))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("reader", READERS)
def test_positions_are_exact(store, reader):
    make, dataset = READERS[reader]
    local, url = make(store)
    expected = list(dataset(local))
    iterator = iter(dataset(url))
    for i in range(40):
        assert next(iterator) == expected[i]
    position = json.loads(json.dumps(iterator.state()))
    iterator.close()
    again = iter(dataset(url))
    again.restore(position)
    assert again.state() == position
    assert list(again) == expected[40:]


def test_names_are_listed_as_local_ones(store):
    for name in ("b.txt", "a.txt", ".hidden.txt", "c.csv"):
        store.put(name, b"x\n")
    for pattern in ("*.txt", "**.txt", "[ab].*", ".*", "?.csv", "a.txt"):
        local = [pathlib.Path(each).name for each in Dataset.list_files(f"{store.local}/{pattern}", shuffle=False)]
        assert list(Dataset.list_files(f"{store.url}/{pattern}", shuffle=False)) == [f"{store.url}/{name}" for name in local]
    assert list(TextLineDataset(Dataset.list_files([f"{store.url}/*.csv", str(store.local / "*.csv")]))) == ["x", "x"]


def test_csv_files_are_found_by_patterns(store):
    store.put("one.csv", b"x,y\n1,2\n")
    store.put("two.csv", b"x,y\n3,4\n")
    make = lambda folder: make_csv_dataset(f"{folder}/*.csv", 2, label_name="y", shuffle=False, num_epochs=1)  # noqa: E731
    (ours,), (expected,) = make(store.url), make(store.local)
    assert ours[0]["x"].tolist() == expected[0]["x"].tolist() == [1, 3]
    assert ours[1].tolist() == expected[1].tolist() == [2, 4]


def test_files_are_shared_and_explained_as_local_ones(store):
    urls = [store.put(f"{i}", f"{i}\n".encode())[1] for i in range(4)]
    told = str(TextLineDataset(urls).batch(2).explain(num_workers=2))
    assert "policy: FILE, because everything is read from files, and 4 are enough for 2 workers" in told
    assert f"reads {urls[1]}, {urls[3]}; rows per batch" in told


def test_a_fingerprint_changes_with_the_contents(store):
    _, url = store.put("a", b"one\n")
    first = fingerprint(TextLineDataset(url).node)
    assert fingerprint(TextLineDataset(url).node) == first
    store.put("a", b"two\n")
    assert fingerprint(TextLineDataset(url).node) != first


def test_a_file_that_changed_since_the_position_was_saved_is_told(store):
    _, url = store.put("a", b"one\ntwo\nthree\n")
    iterator = iter(TextLineDataset(url))
    next(iterator)
    position = iterator.state()
    store.put("a", b"one\nTWO\nthree\n")
    again = iter(TextLineDataset(url))
    again.restore(position)
    with pytest.raises(
        DatasetError, match=r"TextLineDataset: 'memory://.*/a' has changed since .*: it was 14 bytes, created .*, and is"
    ):
        next(again)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_that_changes_while_it_is_read_is_told(store):
    lines = [f"{i:09}\n".encode() for i in range(1000)]
    _, url = store.put("a", b"".join(lines))
    file = _read_ahead.RemoteFile(url)
    assert file.read(10) == lines[0]
    store.put("a", b"".join(reversed(lines)))
    file.seek(5000)
    with pytest.raises(
        RemoteError, match=r"^memory://.*/a has changed while it was read: it was 10000 bytes, created .*, and is now 10000 bytes"
    ):
        file.read(10)
    store.put("a", b"short")
    file.seek(9000)
    with pytest.raises(RemoteError, match=r"has changed while it was read: .* and is now 5 bytes"):
        file.read(10)


@pytest.mark.usefixtures("small_blocks")
def test_a_file_is_a_seekable_stream(store):
    local, url = store.put("a", TEXT)
    rng = np.random.default_rng(0)
    with io.BufferedReader(_read_ahead.RemoteFile(url), 50) as file, pathlib.Path(local).open("rb") as expected:
        assert file.seekable()
        for _ in range(60):
            whence = int(rng.integers(3))
            offset = int(rng.integers(*[(0, 4000), (-min(150, expected.tell()), 150), (-3000, 10)][whence]))
            assert file.seek(offset, whence) == expected.seek(offset, whence)
            count = int(rng.integers(0, 500))
            assert file.read(count) == expected.read(count)


class Requests(MemoryFileSystem):
    """A store in memory that notes the ranges that are read, and fails as it is told to."""

    protocol = "troubled"
    store, pseudo_dirs = MemoryFileSystem.store, MemoryFileSystem.pseudo_dirs
    ranges: ClassVar[list] = []
    fail = staticmethod(lambda number: None)
    number = 0

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("troubled://", "memory://"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        Requests.number += 1
        Requests.ranges.append((start, end))
        cut = Requests.fail(Requests.number)
        return super().cat_file(path, start, end, **kwargs)[:cut]


@pytest.fixture
def troubled(store, monkeypatch):
    """The store, at URLs of a kind whose requests fail."""
    fsspec.register_implementation("troubled", Requests, clobber=True)
    monkeypatch.setattr(Requests, "ranges", [])
    monkeypatch.setattr(Requests, "number", 0)
    monkeypatch.setattr(Requests, "fail", staticmethod(lambda number: None))
    monkeypatch.setattr(_retry, "_FIRST_PAUSE", 0.001)
    return lambda url: url.replace("memory://", "troubled://")


def raising(error):
    def fail(number):
        raise error

    return fail


@pytest.mark.usefixtures("small_blocks")
def test_requests_that_fail_are_repeated(store, troubled, monkeypatch):
    local, url = store.put("a", TEXT)

    def fail(number):
        if number % 3 == 0:
            raise OSError("503 Slow Down")
        return 40 if number % 3 == 1 else None  # a connection that was cut

    monkeypatch.setattr(Requests, "fail", staticmethod(fail))
    same(TextLineDataset(troubled(url)), TextLineDataset(local))
    assert len(Requests.ranges) > 2 * len({*Requests.ranges})


def test_a_request_that_never_succeeds_is_an_error(store, troubled, monkeypatch):
    _, url = store.put("a", TEXT)
    monkeypatch.setattr(Requests, "fail", staticmethod(raising(OSError("503 Slow Down"))))
    message = (
        r"^TextLineDataset: could not read troubled://bucket/of a test/a after 12 attempts in \d+\.\d s, the last of which "
        r"ended with OSError: 503 Slow Down\.$"
    )
    monkeypatch.setattr(_retry, "_LONGEST_PAUSE", 0.001)
    for compression in ("", "GZIP"):
        with pytest.raises(DatasetError, match=message):
            next(iter(TextLineDataset(troubled(url), compression)))
    monkeypatch.setattr(Requests, "fail", staticmethod(lambda number: 3))
    with pytest.raises(DatasetError, match=f"ended with OSError: 3 bytes came of {len(TEXT)}, from byte 0 on"):
        next(iter(TextLineDataset(troubled(url))))


@pytest.mark.parametrize("ignoring", [False, True])
def test_a_file_that_cannot_be_opened_now_is_not_passed_over(store, monkeypatch, ignoring):
    urls = [store.put(name, f"{name}0\n{name}1\n".encode())[1] for name in "abc"]
    monkeypatch.setattr(_retry, "_ATTEMPTS", 1)
    dataset = TextLineDataset(urls)
    iterator, came = iter(dataset.ignore_errors() if ignoring else dataset), []
    info = MemoryFileSystem.info

    def fail_at_b(self, path, **rest):
        if path.endswith("b"):
            raise OSError("503")
        return info(self, path, **rest)

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFileSystem, "info", fail_at_b)
        with pytest.raises(DatasetError, match=r"cannot open '.*b': could not look at .*b: OSError: 503"):
            came.extend(iterator)
        position = json.loads(json.dumps(iterator.state()))
    assert came == ["a0", "a1"]
    assert list(iterator) == ["b0", "b1", "c0", "c1"]
    again = iter(dataset.ignore_errors() if ignoring else dataset)
    again.restore(position)
    assert list(again) == ["b0", "b1", "c0", "c1"]


def test_a_file_that_is_missing_is_passed_over_if_errors_are_ignored(store):
    urls = [store.put(name, f"{name}\n".encode())[1] for name in "ac"]
    assert list(TextLineDataset([urls[0], f"{store.url}/b", urls[1]]).ignore_errors()) == ["a", "c"]


def test_errors_that_stay_are_not_repeated(store, troubled, monkeypatch):
    _, url = store.put("a", TEXT)
    monkeypatch.setattr(Requests, "fail", staticmethod(raising(PermissionError("403"))))
    with pytest.raises(DatasetError, match=r"could not read troubled://bucket/of a test/a: PermissionError: 403\.$"):
        next(iter(TextLineDataset(troubled(url))))
    assert Requests.number == 1


def test_a_store_that_does_not_answer_is_an_error_at_the_deadline(store, troubled, monkeypatch):
    _, url = store.put("a", TEXT)
    released = threading.Event()
    monkeypatch.setattr(Requests, "fail", staticmethod(lambda number: released.wait(20) and None))
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.4")
    start = time.monotonic()
    with pytest.raises(DatasetError, match=r"after \d attempts in 0\.\d s, .* ended with TimeoutError: no answer within 0\.\d s"):
        next(iter(TextLineDataset(troubled(url))))
    released.set()
    assert time.monotonic() - start < 5


@pytest.mark.usefixtures("small_blocks")
def test_a_compressed_file_is_read_on_when_its_store_answers_again(store, troubled, monkeypatch):
    lines = [str(number) for number in np.random.default_rng(0).integers(0, 1 << 30, 1000)]
    data = gzip.compress("\n".join(lines).encode())
    assert len(data) > 3000
    _, url = store.put("a", data)
    monkeypatch.setattr(_retry, "_ATTEMPTS", 1)
    monkeypatch.setattr(Requests, "fail", staticmethod(lambda number: raising(OSError("503"))(number) if number > 1 else None))
    iterator, came = iter(TextLineDataset(troubled(url), "GZIP")), []
    with pytest.raises(DatasetError, match="OSError: 503"):
        came.extend(iterator)
    assert came == lines[: len(came)]
    assert 50 < len(came) < 500
    monkeypatch.setattr(Requests, "fail", staticmethod(lambda number: None))
    assert came + list(iterator) == lines


def connecting(monkeypatch, connect):
    """A kind of store, with a file of one line, that calls ``connect(number)`` whenever one connects to it."""
    numbers = itertools.count()

    class Connected(MemoryFileSystem):
        protocol, cachable = "connected", False

        def __init__(self, **options):
            connect(next(numbers))
            super().__init__(**options)

        def info(self, path, **kwargs):
            return {"name": path, "size": 4, "type": "file", "etag": "1"}

        def cat_file(self, path, start=None, end=None, **kwargs):
            return b"one\n"[start:end]

    fsspec.register_implementation("connected", Connected, clobber=True)
    monkeypatch.setattr(_retry, "_FIRST_PAUSE", 0.001)
    return numbers


def test_a_connection_that_is_refused_is_tried_again(monkeypatch):
    def refuse(number):
        if number < 2:
            raise ConnectionRefusedError(111, "Connection refused")

    numbers = connecting(monkeypatch, refuse)
    assert list(TextLineDataset("connected://a")) == ["one"]
    assert next(numbers) == 3


def test_connecting_has_the_deadline(monkeypatch):
    released = threading.Event()
    connecting(monkeypatch, lambda number: released.wait(20) and None)
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.4")
    with pytest.raises(DatasetError, match=r"could not connect to connected://a after \d attempts in 0\.\d s, .* no answer within"):
        next(iter(TextLineDataset("connected://a")))
    released.set()


FORKS = """
import os, signal, threading, warnings
import fsspec
from fsspec.implementations.memory import MemoryFileSystem
from replicant.storage import _read_ahead

warnings.simplefilter("ignore")  # of forks with threads
released = threading.Event()

class Slow(MemoryFileSystem):
    protocol, cachable = "slow", False

    def cat_file(self, path, start=None, end=None, **kwargs):
        if start >= 3000:
            released.wait()
        return bytes(end - start)

    def info(self, path, **kwargs):
        return {"name": path, "size": 10_000, "type": "file", "etag": "1"}

fsspec.register_implementation("slow", Slow)
_read_ahead.BLOCK = 1000
file = _read_ahead.RemoteFile("slow://a")
for _ in range(3):
    assert file.read(1000) == bytes(1000)
child = os.fork()
if not child:
    signal.alarm(30)
    try:
        file.read(1000)
    except OSError as error:
        os.write(1, f"child: {error}\\n".encode())
    os._exit(0)
assert os.waitpid(child, 0) == (child, 0)
released.set()
assert file.read(1000) == bytes(1000)
print("parent read on to byte", file.tell())
"""


@pytest.mark.long
def test_a_fork_that_waits_for_a_thread_of_its_parent_is_told():
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "child: the thread that reads is gone, as in a forked process; make the iterator after the fork",
        "parent read on to byte 4000",
    ], done.stderr


def test_a_read_that_failed_can_be_repeated(store, troubled, monkeypatch):
    _, url = store.put("a", TEXT)
    file = _read_ahead.RemoteFile(troubled(url))
    monkeypatch.setattr(Requests, "fail", staticmethod(raising(PermissionError("403"))))
    with pytest.raises(RemoteError, match="PermissionError: 403"):
        file.read(10)
    monkeypatch.setattr(Requests, "fail", staticmethod(lambda number: None))
    assert file.read(10) == TEXT[:10]


@pytest.mark.parametrize("text", ["0", "-1", "soon", "inf", "nan"])
def test_a_deadline_is_a_number_of_seconds(monkeypatch, text):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", text)
    with pytest.raises(ConfigurationError, match=f"REPLICANT_REMOTE_DEADLINE='{text}' is not a number of seconds above 0"):
        retried("read", "s3://a", lambda seconds: None)


@pytest.mark.usefixtures("small_blocks")
def test_reading_in_order_reads_a_few_blocks_ahead(store, troubled):
    _, url = store.put("a", bytes(10_000))
    file = _read_ahead.RemoteFile(troubled(url))
    most = 0
    for _ in range(100):
        assert file.read(100) == bytes(100)
        most = max(most, len(file._blocks))
    assert most == 1 + _read_ahead.AHEAD
    assert sorted(Requests.ranges) == [(start, start + 1000) for start in range(0, 10_000, 1000)]
    file.close()
    Requests.ranges.clear()
    file = _read_ahead.RemoteFile(troubled(url))
    for start in (9000, 1000, 5000):
        file.seek(start)
        file.read(5)
    assert Requests.ranges == [(9000, 10_000), (1000, 2000), (5000, 6000)]


def test_an_empty_file_has_no_elements(store):
    _, url = store.put("a", b"")
    assert list(TextLineDataset(url)) == []
    assert list(TFRecordDataset([url, url])) == []


CASES = [
    (
        lambda url: TextLineDataset(f"{url}/no"),
        DatasetError,
        "cannot open 'memory://.*/no': could not look at memory://.*: FileNotFound",
    ),
    (TextLineDataset, DatasetError, "cannot open 'memory://.*': could not read memory://.*: it is a folder"),
    (
        lambda url: Dataset.list_files(f"{url}/*.no"),
        DatasetError,
        r"list_files: no file matches 'memory://.*/\*\.no'\. Check the path",
    ),
    (lambda url: TextLineDataset("nope://a"), ConfigurationError, "nope://a is not a URL that fsspec can read .* s3://bucket/name"),
    (
        lambda url: TextLineDataset(pathlib.Path(f"{url}/a")),
        ArgumentError,
        "drops one of its slashes. Pass the text: 'memory://bucket/",
    ),
    (
        lambda url: TextLineDataset("gs://bucket/a"),
        ConfigurationError,
        "gs://bucket/a needs another package .*gcsfs.*: install the pack",
    ),
]


@pytest.mark.parametrize(("make", "kind", "message"), CASES)
def test_errors(store, make, kind, message):
    store.put("a", b"")
    with pytest.raises(kind, match=message):
        next(iter(make(store.url)))


def test_listing_that_fails_is_an_error(troubled, monkeypatch):
    monkeypatch.setattr(Requests, "glob", lambda self, path: raising(PermissionError("403"))(0))
    with pytest.raises(DatasetError, match=r"^list_files: could not list troubled://b/\*: PermissionError: 403\.$"):
        Dataset.list_files("troubled://b/*")


def test_facts_that_cannot_be_had_are_an_error(troubled, monkeypatch):
    monkeypatch.setattr(Requests, "info", lambda self, path: raising(OSError("500"))(0))
    monkeypatch.setattr(_retry, "_ATTEMPTS", 2)
    with pytest.raises(
        DatasetError, match=r"^The files of the dataset: could not look at troubled://b/a after 2 attempts in .* OSError: 500"
    ):
        fingerprint(TextLineDataset("troubled://b/a").node)


def test_an_identity_is_the_best_that_a_store_tells(monkeypatch, troubled):
    info = {"size": 3, "type": "file"}
    monkeypatch.setattr(Requests, "info", lambda self, path: info)
    assert Store("troubled://a").facts() == Facts(3, "without ETag or time")
    info["Last-Modified"] = "Fri, 02 Jan 2026 00:00:00 GMT"  # all that many HTTP servers tell
    assert Store("troubled://a").facts() == Facts(3, "Last-Modified Fri, 02 Jan 2026 00:00:00 GMT")
    info["LastModified"] = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    assert Store("troubled://a").facts() == Facts(3, "LastModified 2026-01-02T00:00:00+00:00")
    info["Content-MD5"] = "Q2hlY2s="
    assert Store("troubled://a").facts() == Facts(3, "Content-MD5 Q2hlY2s=")
    info["ETag"] = '"abc"'
    assert Store("troubled://a").facts() == Facts(3, "ETag abc")
    info["size"] = None
    with pytest.raises(RemoteError, match="could not read troubled://a: it is of unknown size"):
        Store("troubled://a").facts()


def test_text_that_mentions_urls_leads_to_no_requests(store, troubled, monkeypatch):
    _, url = store.put("a", b"one\n")
    asked = []
    monkeypatch.setattr(Requests, "info", lambda self, path: asked.append(path) or {"size": 1, "type": "file"})
    texts = Dataset.from_tensor_slices(["troubled://bucket/a", "and other words"])
    fingerprint(Dataset.zip((texts, TextLineDataset(url))).node)
    fingerprint(Dataset.zip((Dataset.from_tensors("https://example.invalid"), TextLineDataset(url))).node)
    assert asked == []
    fingerprint(Dataset.from_tensor_slices([troubled(url)]).interleave(TextLineDataset).node)
    assert len(asked) == 1


def test_many_facts_are_asked_for_at_once(store):
    urls = [store.put(f"{i}", bytes(i))[1] for i in range(40)]
    found = _store.facts_of([*urls[:20], f"{store.url}/no", *urls[20:]])
    assert [None if each is None else each.size for each in found] == [*range(20), None, *range(20, 40)]


# The cache of a host


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLICANT_REMOTE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def blocks(folder):
    return sorted(folder.glob("*.block"))


@pytest.mark.usefixtures("small_blocks")
def test_cached_blocks_are_not_read_again(store, troubled, cached):
    local, url = store.put("a", TEXT)
    same(TextLineDataset(troubled(url)), TextLineDataset(local))
    assert len(blocks(cached)) == len(Requests.ranges) == -(-len(TEXT) // 1000)
    same(TextLineDataset(troubled(url)), TextLineDataset(local))
    assert len(Requests.ranges) == len(blocks(cached))
    local, url = store.put("a", TEXT[::-1].strip() + b"\n")
    same(TextLineDataset(troubled(url)), TextLineDataset(local))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:50] + b"?" + data[51:], lambda data: b"", lambda data: data * 2]
)
def test_damaged_blocks_are_read_again(store, troubled, cached, damage):
    local, url = store.put("a", TEXT)
    same(TextLineDataset(troubled(url)), TextLineDataset(local))
    path = blocks(cached)[3]
    path.write_bytes(damage(path.read_bytes()))
    count = len(Requests.ranges)
    same(TextLineDataset(troubled(url)), TextLineDataset(local))
    assert len(Requests.ranges) == count + 1


def test_the_blocks_that_were_not_used_for_longest_go_first(tmp_path):
    cache = BlockCache(tmp_path / "cache", 3 * 112)
    for name in "abc":
        cache.put(name, name.encode() * 100)
        time.sleep(0.02)
    assert cache.get("a", 100) == b"a" * 100
    (tmp_path / "cache" / "1234.partial").write_bytes(b"of a process that was killed")
    cache.put("d", b"d" * 100)
    assert [cache.get(name, 100) is not None for name in "abcd"] == [True, False, True, True]
    assert len(list((tmp_path / "cache").iterdir())) == 4  # and the lock
    cache.put("e", bytes(400))
    assert cache.get("e", 400) is None
    assert len(blocks(tmp_path / "cache")) == 3


def test_a_process_that_was_stopped_stops_no_other(tmp_path):
    cache = BlockCache(tmp_path / "cache", 1000)
    cache.put("a", b"1")
    with (tmp_path / "cache" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        start = time.monotonic()
        cache.put("b", b"2")
        assert time.monotonic() - start < 5
    assert cache.get("a", 1) == b"1"
    assert cache.get("b", 1) is None


def test_only_a_known_version_is_kept(store, troubled, cached, monkeypatch):
    _, url = store.put("a", TEXT)
    monkeypatch.setattr(Requests, "info", lambda self, path: {"size": len(TEXT), "type": "file"})
    assert len(list(TextLineDataset(troubled(url)))) == 300
    assert not cached.exists()


def test_a_cache_that_cannot_be_written_is_none(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    cache = BlockCache(tmp_path / "file", 1000)
    cache.put("a", b"1")
    assert cache.get("a", 1) is None


def test_the_limit_of_a_cache_is_a_number_of_bytes(cached, monkeypatch):
    assert block_cache().limit == 10 << 30
    monkeypatch.setenv("REPLICANT_REMOTE_CACHE_BYTES", "5000")
    assert block_cache().limit == 5000
    monkeypatch.setenv("REPLICANT_REMOTE_CACHE_BYTES", "5GB")
    with pytest.raises(ConfigurationError, match=r"REPLICANT_REMOTE_CACHE_BYTES='5GB' is not a number of bytes. Set it to 1"):
        block_cache()


def test_a_closed_file_asks_no_more(monkeypatch):
    fsspec.filesystem("memory").pipe("/closed/file", b"x" * 100)
    file = _read_ahead.RemoteFile("memory://closed/file")
    asked = threading.Event()

    def failing(self, *args, **kwargs):
        asked.set()
        raise ConnectionError("the store is away")

    monkeypatch.setattr(MemoryFileSystem, "cat_file", failing)
    monkeypatch.setattr(_retry, "_FIRST_PAUSE", 60.0)
    ahead = file._begin(0)
    assert asked.wait(10)
    assert not ahead.done.wait(0.1)
    file.close()
    assert ahead.done.wait(10)
    with pytest.raises(RemoteError, match=r"could not read memory://closed/file: ConnectionError: the store is away"):
        ahead.result()
    fsspec.filesystem("memory").rm("/closed", recursive=True)


# What is written stays on this machine


WRITERS = {
    "Watchdog: file": lambda url: Watchdog(60, file=url),
    "save: path": lambda url: Dataset.range(2).save(url),
    "load: path": Dataset.load,
    "snapshot: path": lambda url: Dataset.range(2).snapshot(url),
    "cache: filename": lambda url: Dataset.range(2).cache(url),
}


@pytest.mark.parametrize("kind", [str, pathlib.Path])
@pytest.mark.parametrize("what", WRITERS)
def test_what_is_written_stays_on_this_machine(what, kind):
    with pytest.raises(ArgumentError, match=rf"^{what} must be a path on this machine, .* Received: .*s3:/.*\. Name a local"):
        WRITERS[what](kind("s3://bucket/a"))


def test_names_of_file_urls_are_listed(tmp_path):
    (tmp_path / "a b").write_bytes(b"one\n")
    names = list(Dataset.list_files(f"file://{tmp_path}/*", shuffle=False))
    assert names == [f"file://{tmp_path}/a b"]
    assert list(TextLineDataset(names)) == ["one"]
