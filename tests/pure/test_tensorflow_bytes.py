"""How the bytes of TensorFlow's checkpoints are read: by many threads, in little memory, and from files that change."""

import mmap
import os
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicant import errors
from replicant._crc32c import crc32c, joined
from replicant.checkpoint.format._readers import Readers
from replicant.checkpoint.tensorflow import open_checkpoint
from replicant.checkpoint.tensorflow.files import _file_bytes
from replicant.checkpoint.tensorflow.files._file_bytes import FileBytes
from replicant.checkpoint.tensorflow.files._pages import taker
from replicant.checkpoint.tensorflow.files._summed_read import LEAST, read_summed

from . import _tensorflow_files as tf


@pytest.mark.parametrize("at_url", [False, True], ids=["disk", "URL"])
def test_many_threads_read_at_once(tmp_path, at_url):
    values = {f"x{i}": np.full(5000 + i, i, np.int32) for i in range(40)}
    path = tf.write_bundle(tmp_path / "ckpt", values, shards=2)
    if at_url:
        system = fsspec.filesystem("memory")
        for file in tmp_path.iterdir():
            system.pipe(f"/threads/{file.name}", file.read_bytes())
        path = "memory://threads/ckpt"
    bundle = open_checkpoint(path)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(bundle.read, list(values) * 5))
    for array, key in zip(found, list(values) * 5, strict=True):
        assert np.array_equal(array, values[key])


def test_the_memory_that_reading_takes(tmp_path):
    """That of what is returned, and a little more."""
    array = np.arange(2 << 20, dtype=np.float64).reshape(1 << 10, 2 << 10)  # 16 MiB
    cuts = [((0, 300), (0, None)), ((300, 724), (0, None))]
    values = {"whole": array, "cut": (array.shape, array.dtype, [(own, array[own[0][0] : sum(own[0])]) for own in cuts])}
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", values))
    for key in values:
        for read, held in ((bundle.read, array.nbytes), (lambda key: bundle.read_part(key, (slice(5, 6), slice(0, 4))), 0)):
            tracemalloc.start()
            read(key)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < held + (3 << 20)


def test_a_file_that_becomes_shorter(tmp_path):
    (tmp_path / "file").write_bytes(bytes(2 << 20))
    pieces = FileBytes(Readers(tmp_path), "file").pieces(0, iter([1 << 20, 1 << 20]), 2 << 20, " of 'x'")
    next(pieces)
    os.truncate(tmp_path / "file", 1 << 20)
    with pytest.raises(errors.DamagedCheckpointError, match="it has become shorter while the bytes of 'x' were read"):
        next(pieces)


@pytest.mark.parametrize("size", [0, 1, LEAST - 1, LEAST, LEAST + 1, 2 * LEAST - 1, 2 * LEAST + 5, 7 * LEAST + 4097])
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_what_threads_read_and_sum_up_in_shares(tmp_path, monkeypatch, size, platform):
    monkeypatch.setattr(sys, "platform", platform)  # where nothing is known of pages, they come as they are written to
    data = np.random.default_rng(size).integers(0, 256, size + 3, np.uint8)
    (tmp_path / "file").write_bytes(data.tobytes())
    with (tmp_path / "file").open("rb") as file:
        found, checksum = read_summed(file.fileno(), 3, size)
        again, _ = read_summed(file.fileno(), 0, size)
    assert np.array_equal(found, data[3:])
    assert checksum == crc32c(data[3:].tobytes())
    assert found.flags.writeable
    assert np.array_equal(again, data[:size])  # in memory of its own


def test_a_large_tensor_with_one_wrong_bit(tmp_path):
    values = np.arange(3 * LEAST // 4 + 1, dtype=np.float32)
    path = tf.write_bundle(tmp_path / "ckpt", {"x": values})
    (data,) = tmp_path.glob("*.data-*")
    assert np.array_equal(open_checkpoint(path).read("x"), values)
    for at in (0, LEAST + 17, 2 * LEAST + 1, values.nbytes - 1):
        raw = bytearray(data.read_bytes())
        raw[at] ^= 16
        data.write_bytes(raw)
        with pytest.raises(errors.DamagedCheckpointError, match=r"'x' \(bytes 0 to 12582916\) should have the checksum 0x"):
            open_checkpoint(path).read("x")
        raw[at] ^= 16
        data.write_bytes(raw)


def test_a_file_that_becomes_shorter_while_threads_read_it(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(3 * LEAST))

    def shorter(*arguments):
        os.truncate(tmp_path / "file", 2 * LEAST + 5)
        return read_summed(*arguments)

    monkeypatch.setattr(_file_bytes, "read_summed", shorter)
    with pytest.raises(errors.DamagedCheckpointError, match="it has become shorter while the bytes of 'x' were read"):
        FileBytes(Readers(tmp_path), "file").read(0, 3 * LEAST, " of 'x'")


@pytest.mark.skipif(sys.platform != "linux", reason="only there pages are taken together")
def test_pages_are_taken_once():
    room = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(room, np.uint8)
    take = taker(array)
    take(array[5 : 1 << 19])
    assert taker(array[: 1 << 19]) is None
    assert taker(array) is not None  # its last page is not there
    array[-1] = 1
    assert taker(array) is None
    assert not array[:-1].any()


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_of_two_parts(first, second):
    assert joined(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_checksums_of_long_parts():
    zeros = bytes(3 << 20)
    assert crc32c(zeros) == joined(crc32c(zeros[5:]), crc32c(zeros[:5]), 5) == joined(0, crc32c(zeros), len(zeros)) == 0xDD28F52B
    assert joined(0xE3069283, 0, 0) == 0xE3069283


def test_without_memory(tmp_path, monkeypatch):
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", {"x": np.arange(4)}))

    def full(*_, **__):
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(errors.CheckpointError, match=r"ckpt\.index: there is not enough memory for what it holds of 'x'"):
        bundle.read_part("x", (slice(0, 4),))


def test_checksums_without_the_library_in_c(monkeypatch):
    """The one in Python takes no arrays."""
    data = np.arange(256, dtype=np.uint8)
    found = crc32c(data)
    assert found == crc32c(data[100:], crc32c(data[:100])) == crc32c(data.tobytes()) == 0x9C44184B
    monkeypatch.setattr("replicant._crc32c._TAKES_ARRAYS", False)
    assert crc32c(data) == found
    assert crc32c(data[1::2]) == crc32c(data[1::2].tobytes())
