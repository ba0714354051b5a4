"""ArrayRecord files: what the package reads, by number and in order, and files that are damaged."""

import gzip
import sys

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from replicant.data import ArrayRecordDataset, TensorSpec
from replicant.errors import ArgumentError, ConfigurationError, DatasetError, ElementError
from replicant.input.files.records import _array_record

from .test_input_numbered import array_record


@pytest.mark.parametrize(
    "options", ["group_size:1", "group_size:7", "group_size:1,uncompressed", "group_size:3,brotli:6", "snappy"]
)
def test_records_are_those_of_the_package(tmp_path, options):
    path = array_record(tmp_path / "a", 0, 40, options)
    dataset = ArrayRecordDataset(path)
    wanted = [b"%d" % i for i in range(40)]
    reader = ArrayRecordReader(str(path))
    assert list(dataset) == reader.read_all() == wanted
    reader.close()
    assert dataset.element_spec == TensorSpec((), object)
    assert sorted(dataset.global_shuffle(seed=1), key=int) == wanted
    assert [record for batch in dataset.batch(7) for record in batch.tolist()] == wanted


def test_records_of_many_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(_array_record, "_AHEAD", 3)
    path = array_record(tmp_path / "a", 0, 20)
    assert [int(record) for record in ArrayRecordDataset(path)] == list(range(20))
    assert [int(record) for record in ArrayRecordDataset(path).shuffle(1)] == list(range(20))


def damaged(path, begin):
    """Change the bytes of a record."""
    data = bytearray(path.read_bytes())
    at = data.find(begin)
    assert at > 0
    data[at] ^= 0xFF
    path.write_bytes(data)
    return path


def test_a_record_that_is_damaged(tmp_path):
    path = damaged(array_record(tmp_path / "a", 1000, 1040, "group_size:1,uncompressed"), b"1017")
    iterator = iter(ArrayRecordDataset(path))
    assert [int(next(iterator)) for _ in range(17)] == list(range(1000, 1017))
    for _ in range(2):
        with pytest.raises(
            ElementError, match=r"ArrayRecordDataset: record 17 of '.*a' is damaged: .*Copy or write the file again\."
        ):
            next(iterator)
    rest = [n for n in range(1000, 1040) if n != 1017]
    assert [int(record) for record in ArrayRecordDataset(path).ignore_errors()] == rest
    lenient = iter(ArrayRecordDataset(path, on_error="skip"))
    assert [int(record) for record in lenient] == rest
    assert lenient.num_skipped == 1
    with pytest.raises(DatasetError, match=r"ArrayRecordDataset: '.*a' is damaged"):
        list(ArrayRecordDataset(path).global_shuffle(seed=1))


def test_files_that_are_no_array_records(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"no records")
    with pytest.raises(DatasetError, match=r"ArrayRecordDataset: '.*a' is damaged: ArrayRecord file should be at least 64KB"):
        list(ArrayRecordDataset(path))
    path.write_bytes(gzip.compress(b"1"))
    with pytest.raises(
        DatasetError, match=r"'.*a' is not an ArrayRecord file\. Its first bytes are .* by GZIP: decompress it before \("
    ):
        list(ArrayRecordDataset(path))
    assert list(ArrayRecordDataset(array_record(tmp_path / "b", 0, 0))) == []


def test_a_record_that_is_too_large(tmp_path):
    path = array_record(tmp_path / "a", 98, 102)
    assert len(list(ArrayRecordDataset(path, max_record_bytes=3))) == 4
    limited = ArrayRecordDataset(path, max_record_bytes=2)
    with pytest.raises(
        DatasetError, match=r"the record at byte 2 of '.*a' has 3 bytes, more than 2, the most that max_record_bytes"
    ):
        list(limited)
    with pytest.raises(DatasetError, match="has 3 bytes, more than 2"):
        list(limited.global_shuffle(seed=1))
    with pytest.raises(ArgumentError, match="ArrayRecordDataset: max_record_bytes must be at least 1"):
        ArrayRecordDataset(path, max_record_bytes=0)


def test_the_package_is_not_installed(tmp_path, monkeypatch):
    path = array_record(tmp_path / "a", 0, 2)
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(
        ConfigurationError, match=r"ArrayRecordDataset reads .* the package array_record, .*replicant-jax\[array-record\]"
    ):
        list(ArrayRecordDataset(path))


def test_many_files_are_not_open_at_once(tmp_path, monkeypatch):
    _array_record._open.cache_clear()
    files = [array_record(tmp_path / f"{i:03}", i, i + 1) for i in range(100)]
    dataset = ArrayRecordDataset(files).global_shuffle(seed=1)
    assert sorted(int(record) for record in dataset) == list(range(100))
    assert _array_record._open.cache_info().currsize == 64
    assert np.array(list(dataset.repeat(2).batch(100))).shape == (2, 100)
