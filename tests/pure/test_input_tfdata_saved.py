"""Datasets that tf.data has saved: what it reads in them, from every position, and what is damaged or not read."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from replicant.data import Dataset, TensorSpec
from replicant.errors import DatasetError

from ._tfds_folders import differences

RECORDED = Path(__file__).resolve().parents[1] / "tensorflow_files" / "tfdata"
TRUTH = json.loads((RECORDED / "truth.json").read_text())


@pytest.fixture
def copied(tmp_path):
    """Copies a recorded folder, in which files may be changed."""

    def copy(name):
        shutil.copytree(RECORDED / name, tmp_path / name)
        return tmp_path / name

    return copy


def file_in(folder, shard=0):
    return next(folder.glob(f"*/{shard:08}.shard/00000000.snapshot"))


@pytest.mark.parametrize("name", ["kinds", "gzip", "shards", "batches"])
def test_what_tf_data_reads(name):
    found = list(Dataset.load(RECORDED / name, compression="GZIP" if name == "gzip" else None))
    assert differences(found, TRUTH[name]) == []


def test_what_is_known_without_reading():
    dataset = Dataset.load(RECORDED / "kinds")
    numbers, texts, rest = dataset.element_spec
    assert numbers["bfloat16"].dtype.name == "bfloat16"
    assert (numbers["bool"], numbers["uint64"]) == (TensorSpec((None, 2), np.bool_), TensorSpec((None, 2), np.uint64))
    assert texts == (TensorSpec((), object), TensorSpec((2,), object))
    assert rest == {"n": {"deep": TensorSpec((), np.int64)}}
    assert [Dataset.load(RECORDED / name).cardinality() for name in ("kinds", "batches", "shards")] == [5, 3, Dataset.UNKNOWN]
    assert Dataset.load(RECORDED / "batches", TensorSpec((None,), np.int64)).element_spec == TensorSpec((None,), np.int64)


def test_nothing_was_saved(copied):
    folder = copied("empty")
    (folder / "10251808546212876570").mkdir(exist_ok=True)  # without files, which Git does not keep
    dataset = Dataset.load(folder)
    assert (list(dataset), dataset.cardinality(), dataset.element_spec) == ([], 0, TensorSpec((), np.int64))


def test_the_shards_one_after_the_other():
    dataset = Dataset.load(RECORDED / "shards", reader_func=lambda shards: shards.flat_map(lambda shard: shard))
    assert [int(x) for x in dataset] == [0, 2, 4, 6, 8, 1, 3, 5, 7]


@pytest.mark.parametrize("name", ["kinds", "gzip", "shards"])
def test_every_position(name):
    compression = "GZIP" if name == "gzip" else None
    whole = list(map(repr, Dataset.load(RECORDED / name, compression=compression)))
    for cut in range(len(whole) + 1):
        iterator = iter(Dataset.load(RECORDED / name, compression=compression))
        assert list(map(repr, itertools.islice(iterator, cut))) == whole[:cut]
        again = iter(Dataset.load(RECORDED / name, compression=compression))
        again.restore(json.loads(json.dumps(iterator.state())))
        assert list(map(repr, again)) == whole[cut:]


def test_what_is_not_read():
    with pytest.raises(
        DatasetError, match=r"holds a snapshot of tf.data, .*: call dataset.save\(folder\) in that program, and load"
    ):
        Dataset.load(RECORDED / "snapshot")
    with pytest.raises(DatasetError, match=r"have components of TensorFlow's type 21, which are not read: map them to tensors of"):
        Dataset.load(RECORDED / "ragged")


@pytest.mark.parametrize(("name", "received", "right"), [("gzip", None, "'GZIP'"), ("kinds", "GZIP", "None")])
def test_another_compression(name, received, right):
    with pytest.raises(DatasetError, match=rf"was saved with compression={right}\. Received: {received!r}\. Give `load` the same"):
        Dataset.load(RECORDED / name, compression=received)


def test_another_spec():
    with pytest.raises(DatasetError, match=r"element_spec is TensorSpec.*float32.*, but the elements in .*batches' are TensorSpec"):
        Dataset.load(RECORDED / "batches", TensorSpec((None,), np.float32))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("snapshot.metadata", lambda data: b"", "snapshot.metadata' is not what tf.data writes: it lacks a field"),
        ("snapshot.metadata", lambda data: data[:-3], "was not finished: the program that saved the dataset has ended before"),
        ("snapshot.metadata", lambda data: b"\xff" * 9, "snapshot.metadata' is not what tf.data writes: a number has no end"),
        ("snapshot.metadata", lambda data: data.replace(b" \x02", b" \x01"), "its version is 1 and its run"),
        ("dataset_spec.pb", lambda data: data.replace(b"\x18\x09", b"\x18\x01"), "its dtypes are others than those in snapshot"),
        ("dataset_spec.pb", lambda data: data.replace(b"\x18\x09", b"\x18\x15"), "a component has TensorFlow's type 21"),
        ("dataset_spec.pb", lambda data: b"", "a part of an element is a StructuredValue of kind 0"),
        ("dataset_spec.pb", lambda data: data + data, "a value has several kinds"),
        ("dataset_spec.pb", lambda data: b"\x8a\x02\x06\x12\x02\x18\x01\x18\x09", "a component has a shape of unknown rank"),
        ("dataset_spec.pb", lambda data: nested(100), "it is nested more than 64 deep"),
        ("dataset_spec.pb", lambda data: bytes((1 << 26) + 1), "it has more than 64 MiB"),
    ],
)
def test_what_the_folder_says_is_wrong(copied, name, change, message):
    folder = copied("batches")
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DatasetError, match=message):
        Dataset.load(folder)


def nested(depth):
    """A StructuredValue of tuples in tuples."""
    data = b""
    for _ in range(depth):
        inner = b"\x0a" + bytes([len(data) & 127 | 128, len(data) >> 7]) + data
        data = b"\xa2\x03" + bytes([len(inner) & 127 | 128, len(inner) >> 7]) + inner
    return data


def test_files_that_are_missing(copied):
    folder = copied("batches")
    file_in(folder).rename(file_in(folder).with_name("00000001.snapshot"))
    with pytest.raises(DatasetError, match=r"its files are \['00000001.snapshot'\], and they should be numbered from 0 on"):
        Dataset.load(folder)
    for run in folder.glob("[0-9]*"):
        shutil.rmtree(run)
    with pytest.raises(DatasetError, match=r"load: cannot open .*: No such file or directory. Copy the folder again"):
        Dataset.load(folder)
    (folder / "dataset_spec.pb").unlink()
    (folder / "dataset_spec.pb").mkdir()
    with pytest.raises(DatasetError, match=r"load: cannot open .*dataset_spec.pb"):
        Dataset.load(folder)


def rewritten(path, change):
    """Write the records of a file again, changed, with the right checksums."""
    from replicant.data import TFRecordDataset, TFRecordWriter

    records = change(list(TFRecordDataset(path)))
    with TFRecordWriter(path) as writer:
        for each in records:
            writer.write(each)


TENSOR = b"\x08\x09\x12\x04\x12\x02\x08\x03\x22\x18" + bytes(24)  # int64 of shape (3,)
TEXT = b"\x08\x07\x12\x04\x12\x02\x08\x02\x22"  # two strings


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("batches", lambda records: records[:-1], r"has 2 elements, and snapshot\.metadata says 3"),
        ("batches", lambda records: [*records, TENSOR], r"has 4 elements or more, and snapshot\.metadata says 3"),
        ("kinds", lambda records: records[:-1], r"it has 17 components, and 18 are expected"),
        ("batches", lambda records: [b"\xff"], "the element at byte 0 of .* is not what tf.data writes: a number has no end"),
        ("batches", lambda records: [TENSOR + b"\x28\x01"], r"a component has the fields \[5\]"),
        ("batches", lambda records: [b"\x08\x01" + TENSOR[2:]], r"has the shape \(3,\) and dtype float32"),
        (
            "batches",
            lambda records: [TENSOR[:9] + b"\x10" + bytes(16)],
            r"a component of shape \(3,\) and dtype int64 has 16 bytes",
        ),
        ("batches", lambda records: [b"\x08\x09\x22\x08" + bytes(8)], r"a component has the shape \(\) and dtype int64"),
        ("batches", lambda records: [b"\x08\x09\x12\x0d\x12\x0b\x08" + b"\xfe" + b"\xff" * 8 + b"\x01"], "a size is -2"),
    ],
)
def test_elements_that_are_wrong(copied, name, change, message):
    folder = copied(name)
    rewritten(file_in(folder), change)
    with pytest.raises(DatasetError, match=message):
        list(Dataset.load(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01\x01\x01", r"strings of 2 bytes have 1"),
        (b"\x01", r"2 strings have 1 bytes, and their lengths alone take more"),
        (b"\x01\xff", r"a number has no end before byte 2 of 2"),
    ],
)
def test_strings_that_are_wrong(copied, content, message):
    folder = copied("kinds")
    rewritten(
        file_in(folder),
        lambda records: [TEXT + bytes([len(content)]) + content if r[:2] == b"\x08\x07" and r[3] else r for r in records],
    )
    with pytest.raises(DatasetError, match=message):
        list(Dataset.load(folder))


def test_an_element_that_is_wrong_is_left_out(copied):
    folder = copied("batches")
    rewritten(file_in(folder), lambda records: [records[0], b"\xff", records[2]])
    assert [batch.tolist() for batch in Dataset.load(folder).ignore_errors()] == [[0, 1, 2], [6]]


def test_a_checksum_that_is_wrong(copied):
    folder = copied("batches")
    path = file_in(folder)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        DatasetError, match=r"load: .*00000000.snapshot' is damaged in the record at byte \d+: the checksum of its data"
    ):
        list(Dataset.load(folder))
