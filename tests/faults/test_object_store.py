"""Files on an S3 server, alone and behind a proxy that fails at random: elements are those of local files, or there is an error."""

import gzip
import json
import subprocess
import sys
import time

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from replicant.data import Dataset, ParquetDataset, TextLineDataset, TFRecordDataset, TFRecordWriter
from replicant.errors import DatasetError
from replicant.input.transforms._pipeline_fingerprint import fingerprint
from replicant.storage import _ranges, _read_ahead, _upload

from ._object_store import Handler, in_front_of, s3_server


@pytest.fixture(scope="module")
def port():
    with s3_server() as port:
        yield port


@pytest.fixture
def at(monkeypatch):
    """``at(port)`` makes s3:// URLs mean the server at this port, and returns the file system."""

    def at(port):
        options = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "key", "secret": "secret"}
        monkeypatch.setitem(fsspec.config.conf, "s3", options)
        return fsspec.filesystem("s3")

    return at


@pytest.fixture
def files(port, at, tmp_path, request):
    """Local files, and URLs of the same ones in a bucket of the test's own."""
    bucket = f"bucket-{abs(hash(request.node.name))}"
    system = at(port)
    system.mkdir(bucket)
    rng = np.random.default_rng(0)
    names = []
    for i in range(3):
        path = tmp_path / f"{i}.tfrecord"
        with TFRecordWriter(path) as writer:
            for size in rng.integers(0, 4000, 100):
                writer.write(rng.bytes(size))
        names.append((path, f"s3://{bucket}/in a folder/{path.name}"))
    for path, url in names:
        system.pipe(url, path.read_bytes())
    return [str(path) for path, _ in names], [url for _, url in names]


def test_elements_positions_and_names_are_those_of_local_files(files, monkeypatch):
    monkeypatch.setattr(_read_ahead, "BLOCK", 50_000)
    local, urls = files
    expected = list(TFRecordDataset(local))
    assert list(TFRecordDataset(urls)) == expected
    assert list(Dataset.list_files(f"{urls[0].rpartition('/')[0]}/*", shuffle=False)) == urls
    iterator = iter(TFRecordDataset(urls))
    assert [next(iterator) for _ in range(150)] == expected[:150]
    position = json.loads(json.dumps(iterator.state()))
    assert position["position"]["identity"].partition("ETag ")[2]
    again = iter(TFRecordDataset(urls))
    again.restore(position)
    assert list(again) == expected[150:]


def test_changes_are_told(files, port, at):
    _, urls = files
    system = at(port)
    first = fingerprint(TextLineDataset(urls[0]).node)
    system.pipe(urls[0], b"one\ntwo\n")
    assert fingerprint(TextLineDataset(urls[0]).node) != first
    iterator = iter(TextLineDataset(urls[0]))
    assert next(iterator) == "one"
    position = iterator.state()
    system.pipe(urls[0], b"one\nTWO\n")
    again = iter(TextLineDataset(urls[0]))
    again.restore(position)
    with pytest.raises(
        DatasetError, match=r"'s3://.*' has changed since the position was saved: it was 8 bytes, ETag \w+, and is now"
    ):
        next(again)


@pytest.mark.parametrize("no_etag", [("GET",), ("HEAD",), ("GET", "HEAD")])
def test_servers_that_leave_out_etags_are_read(files, port, at, monkeypatch, no_etag):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "8")
    local, urls = files
    with in_front_of(port) as proxy:
        proxy.no_etag = no_etag
        at(proxy.server_address[1])
        assert list(TFRecordDataset(urls)) == list(TFRecordDataset(local))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_server_that_fails_at_random_changes_nothing(files, port, at, monkeypatch, seed, chaos, tmp_path):  # noqa: PLR0917
    """Every fifth request fails in some way. Half of the runs use a cache, and each is broken off and goes on once."""
    monkeypatch.setattr(_read_ahead, "BLOCK", 60_000)
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "90")
    if seed % 2:
        monkeypatch.setenv("REPLICANT_REMOTE_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("REPLICANT_REMOTE_CACHE_BYTES", "200000")
    local, urls = files
    make = lambda names: TFRecordDataset(names, num_parallel_reads=None if seed < 3 else 2)  # noqa: E731
    expected = list(make(local))
    with in_front_of(port, chaos.seed + seed, troubles=0.2, stall=25.0) as proxy:
        at(proxy.server_address[1])
        dataset = make(Dataset.list_files(f"{urls[0].rpartition('/')[0]}/*", shuffle=False))
        with iter(dataset) as iterator:
            found = [next(iterator) for _ in range(170)]
            position = json.loads(json.dumps(iterator.state()))
        with iter(dataset) as iterator:
            iterator.restore(position)
            found += list(iterator)
        assert found == expected
        assert sum(proxy.counts.values()) > proxy.counts["fine"] > 0, proxy.counts


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["500", "503", "stalled", "cut", "closed"])
def test_a_server_that_always_fails_is_an_error_at_the_deadline(files, port, at, monkeypatch, fate):
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "4")
    _, urls = files
    with in_front_of(port, stall=60.0) as proxy:
        proxy.fate = lambda: fate
        at(proxy.server_address[1])
        start = time.monotonic()
        with pytest.raises(DatasetError, match=rf"could not (look at|read) {urls[0]} after \d+ attempts in \d\.\d s"):
            list(TFRecordDataset(urls))
        assert time.monotonic() - start < 30


def test_compressed_files_are_read_as_local_ones(files, port, at):
    _, urls = files
    text = "".join(f"{i}\n" for i in range(50_000))
    at(port).pipe(urls[0], gzip.compress(text.encode()))
    assert list(TextLineDataset(urls[0], "GZIP")) == text.split()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_columns_of_a_server_that_fails_at_random_are_those_of_local_files(files, port, at, monkeypatch, seed, chaos, tmp_path):  # noqa: PLR0917
    """Every fifth request fails in some way, half of the runs use a cache, and each is broken off and goes on once."""
    monkeypatch.setattr(_ranges, "_PIECE", 5_000)
    monkeypatch.setattr(_ranges, "_HOLE", 100)
    monkeypatch.setattr(_ranges, "_LARGEST_HOLE", 100)
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "90")
    if seed % 2:
        monkeypatch.setenv("REPLICANT_REMOTE_CACHE", str(tmp_path / "cache"))
    bucket = files[1][0].removeprefix("s3://").partition("/")[0]
    rng = np.random.default_rng(seed)
    for i in range(3):
        columns = {"n": np.arange(i * 1000, i * 1000 + 1000), "x": rng.normal(size=1000), "unread": rng.normal(size=1000)}
        pq.write_table(pa.table(columns), tmp_path / f"{i}.parquet", row_group_size=300)
        at(port).pipe(f"s3://{bucket}/tables/{i}.parquet", (tmp_path / f"{i}.parquet").read_bytes())
    filters = None if seed < 2 else pc.field("x") > 0
    make = lambda names: ParquetDataset(names, columns=["n", "x"], batch_rows=50, filters=filters)  # noqa: E731
    expected = list(make([tmp_path / f"{i}.parquet" for i in range(3)]))
    with in_front_of(port, chaos.seed + seed, troubles=0.2, stall=25.0) as proxy:
        at(proxy.server_address[1])
        dataset = make(Dataset.list_files(f"s3://{bucket}/tables/*", shuffle=False))
        with iter(dataset) as iterator:
            found = [next(iterator) for _ in range(17)]
            position = json.loads(json.dumps(iterator.state()))
        with iter(dataset) as iterator:
            iterator.restore(position)
            found += list(iterator)
        np.testing.assert_equal(found, expected)
        assert sum(proxy.counts.values()) > proxy.counts["fine"] > 0, proxy.counts


def test_columns_are_read_as_local_ones(files, port, at, tmp_path):
    _, urls = files
    pq.write_table(pa.table({"n": np.arange(1000), "text": [str(i) for i in range(1000)]}), tmp_path / "a", row_group_size=300)
    at(port).pipe(urls[0], (tmp_path / "a").read_bytes())
    dataset = ParquetDataset(urls[0], columns=["text", "n"])
    assert dataset.cardinality() == 1000
    np.testing.assert_equal(list(dataset), list(ParquetDataset(tmp_path / "a", columns=["text", "n"])))


UNFINISHED = """
import sys
import fsspec
fsspec.config.conf["s3"] = {"endpoint_url": f"http://localhost:{sys.argv[1]}", "key": "key", "secret": "secret"}
from replicant.summary import create_file_writer, scalar
writer = create_file_writer(sys.argv[2])
writer.set_as_default()
for step in range(5):
    scalar("loss", 0.5, step=step)
"""


@pytest.mark.long
def test_a_log_that_nobody_closes_is_complete_after_the_program(files, port):
    _, urls = files
    folder = f"{urls[0].rpartition('/')[0]}/logs"
    ended = subprocess.run([sys.executable, "-c", UNFINISHED, str(port), folder], timeout=100, check=True, capture_output=True)
    assert (ended.stdout, ended.stderr) == (b"", b"")
    (name,) = Dataset.list_files(f"{folder}/*", shuffle=False)
    assert len(list(TFRecordDataset(name))) == 1 + 5  # the head of the file, and a record for each


@pytest.mark.long
def test_record_files_that_are_sent_in_parts_replace_others(files, port, at):
    _, urls = files
    records = [np.random.default_rng(i).bytes(3_000_000) for i in range(14)]
    for first in (0, 1):
        with TFRecordWriter(urls[0]) as writer:
            for record in records[first:]:
                writer.write(record)
        assert list(TFRecordDataset(urls[0])) == records[first:]
    writer = TFRecordWriter(urls[0])
    for record in records:
        writer.write(record)
    at(port).rm(urls[0])
    writer._file.leave()
    assert not at(port).exists(urls[0])
    bucket, _, key = urls[0].removeprefix("s3://").partition("/")
    assert not at(port).call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key).get("Uploads")


@pytest.fixture
def lose(monkeypatch):
    """``lose(method)`` loses the next answer to this request of an upload. An upload that is complete is gone."""
    whole, lost, complete = _upload.Upload._call, [], set()

    def call(self, method, seconds, **arguments):
        if method == "complete_multipart_upload":
            if arguments["UploadId"] in complete:
                raise FileNotFoundError("no such upload")
            complete.add(arguments["UploadId"])
        answer = whole(self, method, seconds, **arguments)
        if method in lost:
            lost.remove(method)
            raise ConnectionError("the answer was lost")
        return answer

    monkeypatch.setattr(_upload.Upload, "_call", call)
    monkeypatch.setattr(_upload, "PART", 5 << 20)
    return lost.append


def write_record(url, byte):
    with TFRecordWriter(url) as writer:
        writer.write(byte * 6_000_000)


def test_a_lost_answer_is_no_error_if_the_object_has_the_same_bytes_as_before(files, port, at, lose):
    _, urls = files
    at(port)
    for byte in (b"a", b"a", b"b"):
        lose("complete_multipart_upload")
        write_record(urls[0], byte)
        assert list(TFRecordDataset(urls[0])) == [byte * 6_000_000]


def test_an_upload_that_never_ends_is_an_error_if_an_object_of_its_size_is_there(files, port, at, monkeypatch, lose):
    _, urls = files
    at(port)
    write_record(urls[0], b"a")
    whole = _upload.Upload._call

    def call(self, method, seconds, **arguments):
        if method == "complete_multipart_upload":
            raise PermissionError("denied")
        return whole(self, method, seconds, **arguments)

    monkeypatch.setattr(_upload.Upload, "_call", call)
    with pytest.raises(OSError, match=rf"could not write {urls[0]}: PermissionError: denied"):
        write_record(urls[0], b"b")
    assert list(TFRecordDataset(urls[0])) == [b"a" * 6_000_000]


def test_a_lost_answer_does_not_end_the_upload_of_another_writer(files, port, at, lose):
    _, urls = files
    system = at(port)
    bucket, _, key = urls[0].removeprefix("s3://").partition("/")
    other = system.call_s3("create_multipart_upload", Bucket=bucket, Key=key)["UploadId"]
    lose("create_multipart_upload")
    write_record(urls[0], b"a")
    assert list(TFRecordDataset(urls[0])) == [b"a" * 6_000_000]
    assert other in [each["UploadId"] for each in system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)["Uploads"]]


FORGOTTEN = """
import os, sys
import fsspec
fsspec.config.conf["s3"] = {"endpoint_url": f"http://127.0.0.1:{sys.argv[1]}", "key": "key", "secret": "secret"}
from replicant.data import TFRecordWriter
from replicant.storage import _upload
_upload.PART = 5 << 20
writer = TFRecordWriter(sys.argv[2])
writer.write(bytes(6_000_000))  # a part, and a rest
if (child := os.fork()) == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
bucket, _, key = sys.argv[2].removeprefix("s3://").partition("/")
system = fsspec.filesystem("s3")
print(len(system.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)["Uploads"]))
"""


@pytest.mark.long
def test_a_record_file_that_nobody_closes_leaves_nothing_behind(files, port, at):
    _, urls = files
    program = [sys.executable, "-c", FORGOTTEN, str(port), f"{urls[0]}-new"]
    ended = subprocess.run(program, timeout=40, check=True, capture_output=True, text=True)
    assert ended.stdout == "1\n"  # the child has not removed it
    assert ended.stderr.count("-new was never closed, so there is no object.") == 1, ended.stderr
    bucket, _, key = urls[0].removeprefix("s3://").partition("/")
    assert not at(port).call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key).get("Uploads")


FORKED = """
import os, sys
import fsspec
fsspec.config.conf["s3"] = {"endpoint_url": f"http://127.0.0.1:{sys.argv[1]}", "key": "key", "secret": "secret"}
from replicant.data import TFRecordDataset, TFRecordWriter
from replicant.storage import _upload
_upload.PART = 5 << 20
writer = TFRecordWriter(sys.argv[2])
writer.write(bytes(32_000_000))  # six parts, which are as many as may be on their way
child = os.fork()
if child == 0:
    try:
        writer.write(b"more")
    except OSError as error:
        print(str(error).partition(": ")[2].replace(str(os.getpid()), "CHILD").replace(str(os.getppid()), "PARENT"))
    with TFRecordWriter(sys.argv[2] + "-own") as own:
        own.write(bytes(6_000_000))  # a part, and the rest
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
writer.close()
print([[len(record) for record in TFRecordDataset(sys.argv[2] + end)] for end in ("", "-own")])
"""


class SlowParts(Handler):
    def handle_any(self):
        if "partNumber" in self.path:
            time.sleep(1)
        super().handle_any()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - the names that http.server looks for


@pytest.mark.long
def test_a_forked_child_leaves_the_record_file_of_its_parent_alone(files, port):
    _, urls = files
    with in_front_of(port) as proxy:
        proxy.RequestHandlerClass = SlowParts
        program = [sys.executable, "-W", "ignore", "-c", FORKED, str(proxy.server_address[1]), urls[0]]
        ended = subprocess.run(program, timeout=40, check=True, capture_output=True, text=True)
    told = "process PARENT began it, and this is process CHILD, which was forked from it; make the writer after the fork\n"
    assert ended.stdout == f"{told}[[32000000], [6000000]]\n", ended.stderr
