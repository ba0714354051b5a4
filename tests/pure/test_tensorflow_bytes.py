"""How the bytes of TensorFlow's checkpoints are read: by many threads, in little memory, and from files that change."""

import os
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest

from replicant import errors
from replicant._crc32c import crc32c
from replicant.checkpoint.format._readers import Readers
from replicant.checkpoint.tensorflow import open_checkpoint
from replicant.checkpoint.tensorflow.files._file_bytes import FileBytes

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
