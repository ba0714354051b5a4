"""Files on an S3 server, alone and behind a proxy that fails at random: elements are those of local files, or there is an error."""

import gzip
import json
import time

import fsspec
import numpy as np
import pytest

from replicant.data import Dataset, TextLineDataset, TFRecordDataset, TFRecordWriter
from replicant.errors import DatasetError
from replicant.input.transforms._parts import fingerprint
from replicant.storage import _read_ahead

from ._object_store import in_front_of, s3_server


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
