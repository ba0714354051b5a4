"""save, load and snapshot: what comes back, what a crash leaves, and what is refused."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple

import numpy as np
import pytest

from replicant.data import Dataset, TensorSpec
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from replicant.input.files.records._tfrecord import record_parts

NUMBERS = Dataset.range(10)
Pair = namedtuple("Pair", "a b")


def plain(dataset):
    return [element.tolist() for element in dataset]


def test_elements_of_every_kind_come_back(tmp_path):
    rows = {
        "x": np.arange(6, dtype=np.float16).reshape(3, 2),
        "text": ["a", "", "ü"],
        "raw": [b"1", b"\xff", b""],
        "n": [True, False, True],
    }
    dataset = Dataset.zip(Dataset.from_tensor_slices(rows), NUMBERS)
    dataset.save(tmp_path)
    loaded = Dataset.load(tmp_path)
    assert len(loaded) == 3
    assert loaded.element_spec == dataset.element_spec
    for (one, number), (other, its) in zip(dataset, loaded, strict=True):
        assert number == its
        assert one["x"].dtype == other["x"].dtype
        assert one["x"].tolist() == other["x"].tolist()
        assert (one["text"], one["raw"], one["n"]) == (other["text"], other["raw"], other["n"])


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_records_positions_and_cardinality(tmp_path, count, compression):
    Dataset.range(count).save(tmp_path, compression=compression)
    loaded = Dataset.load(tmp_path, compression=compression)
    assert len(loaded) == count
    assert list(loaded.batch(300).unbatch()) == [*range(count)]
    iterator = iter(loaded)
    for _ in range(count // 2):
        next(iterator)
    again = iter(Dataset.load(tmp_path, compression=compression))
    again.restore(json.loads(json.dumps(iterator.state())))
    assert list(again) == [*range(count // 2, count)]
    assert list(loaded.skip(count // 3)) == [*range(count // 3, count)]


def test_several_files_are_read_in_turn_or_as_the_reader_says(tmp_path):
    NUMBERS.save(tmp_path, shard_func=lambda x: x % 3)
    loaded = Dataset.load(tmp_path)
    assert list(loaded) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    one_by_one = Dataset.load(tmp_path, reader_func=lambda files: files.flat_map(lambda file: file))
    assert list(one_by_one) == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
    iterator = iter(loaded)
    first = [next(iterator) for _ in range(4)]
    again = iter(Dataset.load(tmp_path))
    again.restore(iterator.state())
    assert first + list(again) == [*range(10)]


def test_a_save_replaces_the_one_before_at_once_even_while_it_is_read(tmp_path):
    NUMBERS.save(tmp_path)
    old = iter(Dataset.load(tmp_path))
    assert next(old) == 0
    Dataset.load(tmp_path).map(lambda x: x + 1).save(tmp_path)
    assert list(old) == [*range(1, 10)]  # its file is open
    assert list(Dataset.load(tmp_path)) == [*range(1, 11)]
    assert len(list(tmp_path.iterdir())) == 2  # snapshot.json, and one folder


def test_an_error_leaves_the_save_before(tmp_path):
    NUMBERS.save(tmp_path)

    def broken(x):
        if x == 7:
            raise KeyError("seven")
        return x

    with pytest.raises(KeyError):
        NUMBERS.map(broken).save(tmp_path)
    assert list(Dataset.load(tmp_path)) == [*range(10)]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_process_that_is_killed_leaves_the_save_before(tmp_path):
    NUMBERS.save(tmp_path)
    program = """
        import os, sys
        from replicant.data import Dataset

        def die(x):
            if x == 700:
                os._exit(9)
            return x

        Dataset.range(1000).map(die).save(sys.argv[1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=False
    )
    assert done.returncode == 9
    assert list(Dataset.load(tmp_path)) == [*range(10)]


def test_structures_that_a_file_cannot_hold_need_a_spec(tmp_path):
    dataset = Dataset.from_tensors(Pair(1, np.zeros(2)))
    dataset.save(tmp_path)
    with pytest.raises(DatasetError, match=r"which a file cannot hold. Give their `element_spec`"):
        Dataset.load(tmp_path)
    loaded = Dataset.load(tmp_path, element_spec=dataset.element_spec).get_single_element()
    assert type(loaded) is Pair
    assert loaded.b.tolist() == [0, 0]


def test_sizes_that_differ_are_free_in_the_spec(tmp_path):
    Dataset.range(1, 4).map(np.zeros).save(tmp_path)
    assert Dataset.load(tmp_path).element_spec == TensorSpec((None,), np.float64)
    NUMBERS.batch(5).save(tmp_path)
    assert Dataset.load(tmp_path).element_spec == TensorSpec((None,), np.int64)


def shard_file(folder):
    return next(folder.glob("run-*/shard-*"))


def test_damage_is_noticed(tmp_path):
    NUMBERS.save(tmp_path)
    file = shard_file(tmp_path)
    data = bytearray(file.read_bytes())
    data[-10] ^= 1
    file.write_bytes(data)
    with pytest.raises(DatasetError, match=r"is damaged in the record at byte 0. Save the dataset again"):
        list(Dataset.load(tmp_path))
    file.unlink()
    with pytest.raises(DatasetError, match=r"load: cannot read .*Another save may have replaced it"):
        list(Dataset.load(tmp_path))
    index = tmp_path / "snapshot.json"
    good = json.loads(index.read_text())
    for text in ("", "[]", "{}", '{"version": 1}', "[" * 9999):
        index.write_text(text)
        with pytest.raises(DatasetError, match=r"snapshot.json' is damaged"):
            Dataset.load(tmp_path)
    index.write_text(json.dumps({**good, "version": 9}))
    with pytest.raises(DatasetError, match=r"another version of Replicant .format 9, not 1."):
        Dataset.load(tmp_path)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda path: Dataset.load(path / "nowhere"), DatasetError, "there is no saved dataset in .*nowhere"),
        (lambda path: Dataset.load(path, compression="GZIP"), DatasetError, "was saved with compression=None. Received: 'GZIP'"),
        (lambda path: Dataset.load(path, compression="SNAPPY"), ArgumentError, 'load: compression must be None or "GZIP"'),
        (lambda path: NUMBERS.save(path, compression="ZLIB"), ArgumentError, 'save: compression must be None or "GZIP"'),
        (lambda path: NUMBERS.save(path, checkpoint_args={}), ArgumentError, "save: checkpoint_args cannot be used"),
        (lambda path: Dataset.counter().save(path), DatasetError, "save: the dataset is infinite"),
        (lambda path: NUMBERS.save(path, shard_func=lambda x: "a"), ElementError, "must return a whole number of at least 0"),
        (lambda path: NUMBERS.save(path / "snapshot.json"), DatasetError, "save: cannot write to"),
        (lambda path: NUMBERS.window(2).save(path), ElementError, "hold datasets, as `window` makes them"),
        (lambda path: Dataset.load(path, reader_func=lambda files: 3), ArgumentTypeError, "load: reader_func takes datasets"),
        (
            lambda path: Dataset.load(path, element_spec=(TensorSpec((), np.int64),)),
            DatasetError,
            "element_spec has the structure .* but the elements in .* have",
        ),
        (lambda path: Dataset.load(path, element_spec=TensorSpec((), np.int32)), DatasetError, "int32.*, but the elements in"),
        (lambda path: NUMBERS.snapshot(path, "GZIP"), ArgumentError, "snapshot: compression must be None or 'AUTO'"),
        (lambda path: NUMBERS.snapshot(path, shard_func=int), ArgumentError, "snapshot: reader_func and shard_func cannot be used"),
        (lambda path: NUMBERS.snapshot(path / "snapshot.json"), DatasetError, "snapshot: cannot write to"),
        (
            lambda path: Dataset.from_tensor_slices([0, 1]).map(lambda x: x or (x, x)).save(path),
            DatasetError,
            "save: the elements have different structures|must return the same structure",
        ),
        (
            lambda path: NUMBERS.take(2).map(lambda x: np.zeros((1,) * (x + 1))).save(path),
            DatasetError,
            "save: a component has 1 dimensions in one element and 2 in another",
        ),
    ],
)
def test_what_is_refused_and_what_the_message_says(tmp_path, call, error, message):
    NUMBERS.save(tmp_path)
    with pytest.raises(error, match=message):
        call(tmp_path)
    assert list(Dataset.load(tmp_path)) == [*range(10)]


def test_waiting_for_a_save_has_an_end(tmp_path):
    with pytest.raises(DatasetError, match=r"load: nobody has saved a dataset in '.*late' within 0.1 s. .*`wait=0.2`"):
        Dataset.load(tmp_path / "late", wait=0.1)
    later = threading.Timer(0.2, lambda: Dataset.range(3).save(tmp_path / "late"))
    later.start()
    assert list(Dataset.load(tmp_path / "late", wait=True)) == [0, 1, 2]
    later.join()


def test_a_snapshot_is_replayed_and_another_pipeline_has_its_own(tmp_path):
    calls = []

    def made(step):
        return NUMBERS.map(lambda x: (calls.append(1), x * step)[1] if calls is None else x * step).snapshot(tmp_path / "kept")

    assert list(made(2)) == list(made(2)) == [2 * x for x in range(10)]
    assert list(made(3)) == [3 * x for x in range(10)]
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert "snapshot(kept)" in repr(made(2))


def test_a_fingerprint_covers_the_pipeline_its_functions_and_its_data():
    def made(step, data=(1, 2)):
        return Dataset.from_tensor_slices(list(data)).map(lambda x: x * step).batch(2)

    assert isinstance(made(1).fingerprint(), np.uint64)
    assert made(1).fingerprint() == made(1).fingerprint()
    assert len({made(1).fingerprint(), made(2).fingerprint(), made(1, (1, 3)).fingerprint(), made(1).take(1).fingerprint()}) == 4
    scans = [NUMBERS.scan(np.int64(first), lambda s, x: (s + x, s)).fingerprint() for first in (0, 0, 1)]
    assert scans[0] == scans[1] != scans[2]


FORGED = {
    "a number": lambda index: 3,
    "another folder": lambda index: {**index, "run": "../other"},
    "a folder with a line": lambda index: {**index, "run": index["run"] + "\n"},
    "no folder": lambda index: {**index, "run": None},
    "a file elsewhere": lambda index: {**index, "shards": [{**index["shards"][0], "file": "/dev/zero"}]},
    "shards that are a number": lambda index: {**index, "shards": 3},
    "a block of three": lambda index: {**index, "shards": [{**index["shards"][0], "blocks": [[0, 1, 2]]}]},
    "a negative count": lambda index: {**index, "shards": [{**index["shards"][0], "blocks": [[0, -1]]}]},
    "a count that is a text": lambda index: {**index, "shards": [{**index["shards"][0], "blocks": [[0, "1"]]}]},
    "an unknown compression": lambda index: {**index, "compression": "LZ"},
    "an unknown dtype": lambda index: {**index, "elements": {**index["elements"], "leaves": [{"shape": [], "dtype": "evil"}]}},
    "a shape of texts": lambda index: {**index, "elements": {**index["elements"], "leaves": [{"shape": "ab", "dtype": "int64"}]}},
    "a leaf that is not there": lambda index: {**index, "elements": {**index["elements"], "nesting": 7}},
    "another nesting": lambda index: {**index, "elements": {**index["elements"], "nesting": {"list": []}}},
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_index_is_refused(tmp_path, name):
    NUMBERS.save(tmp_path)
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(FORGED[name](json.loads(path.read_text()))))
    with pytest.raises(DatasetError, match=r"^load: '.*snapshot.json' is damaged\. Save the dataset again\.$"):
        Dataset.load(tmp_path)


@pytest.mark.parametrize("count", [1, 11])
def test_a_forged_count_is_noticed(tmp_path, count):
    NUMBERS.save(tmp_path)
    path = tmp_path / "snapshot.json"
    index = json.loads(path.read_text())
    index["shards"][0]["blocks"] = [[0, count]]
    path.write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=r"is damaged in the record at byte 0\. Save the dataset again\."):
        list(Dataset.load(tmp_path))


@pytest.mark.parametrize(
    "head",
    [
        b"\xff",
        b"3",
        b'{"size": 1, "columns": [{"stacked": true, "arrays": [{"shape": [1], "dtype": "object", "bytes": 8}]}]}',
        b'{"size": 1, "columns": [{"stacked": true, "arrays": [{"shape": [9], "dtype": "int64", "bytes": 8}]}]}',
        b'{"size": 1, "columns": [{"stacked": true, "arrays": []}]}',
        b'{"size": 1, "columns": [{"stacked": false, "arrays": [{"shape": [1], "sizes": [8], "is_text": "11", "bytes": 8}]}]}',
        b'{"size": 1, "columns": []}',
        b'{"size": 2, "columns": [{"stacked": true, "arrays": [{"shape": [1], "dtype": "int64", "bytes": 8}]}]}',
    ],
)
def test_a_forged_record_is_noticed(tmp_path, head):
    """Its checksums are right."""
    Dataset.range(1).save(tmp_path)
    [file] = tmp_path.glob("run-*/shard-*")
    with file.open("wb") as out:
        out.writelines(record_parts(len(head).to_bytes(8, "little") + head + bytes(8)))
    with pytest.raises(DatasetError, match=r"is damaged in the record at byte 0\. Save the dataset again\."):
        list(Dataset.load(tmp_path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_instead_of_a_file_is_not_waited_for(tmp_path):
    NUMBERS.save(tmp_path)
    [file] = tmp_path.glob("run-*/shard-*")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DatasetError, match=r"cannot read '.*shard-00000': It is not a regular file but a pipe, a device"):
        list(Dataset.load(tmp_path))
