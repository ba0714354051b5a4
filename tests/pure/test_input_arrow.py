"""Arrow: files, streams and tables in memory. What they share with Parquet is tested there."""

import itertools
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from replicant.data import ArrowDataset, Dataset, DistributedDataset
from replicant.errors import ArgumentTypeError, DatasetError, ElementError
from replicant.input.distributed._direct import only_moves_memory
from replicant.replicas._topology import Topology


def numbers(start, stop):
    return pa.table({"x": np.arange(start, stop), "s": pa.array([f"row {i}" for i in range(start, stop)], pa.string())})


def write(path, table, group=3, make=pa.ipc.new_file, **options):
    with make(path, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=group)
    return path


def xs(elements):
    return [int(element["x"]) for element in elements]


KINDS = {"file": {}, "stream": {"make": pa.ipc.new_stream}, "zstd": {"options": pa.ipc.IpcWriteOptions(compression="zstd")}}


@pytest.fixture(params=KINDS)
def two(request, tmp_path):
    """Files of 7 rows in record batches of 3, and of 4 rows in record batches of 2."""
    kind = KINDS[request.param]
    return [write(tmp_path / "a", numbers(0, 7), **kind), write(tmp_path / "b", numbers(7, 11), 2, **kind)]


def test_rows_and_batches_of_files(two):
    assert xs(ArrowDataset(two)) == list(range(11))
    assert next(iter(ArrowDataset(two[1]))) == {"s": "row 7", "x": 7}
    batches = list(ArrowDataset(two, columns=["x"], batch_rows=4))
    assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert repr(ArrowDataset(two, ["x"])) == "<Dataset: files(2 files) > ArrowDataset(columns=['x'])>"
    plan = ArrowDataset(two).batch(2).explain(num_workers=5)
    assert plan.reason == "everything is read from files, and 5 row groups are enough for 5 workers"


def test_a_position_leads_to_the_same_rest_from_every_point(two):
    for cut in range(12):
        with iter(ArrowDataset(two)) as iterator:
            assert xs(itertools.islice(iterator, cut)) == list(range(cut))
            state = json.loads(json.dumps(iterator.state()))
        again = iter(ArrowDataset(two))
        again.restore(state)
        assert xs(again) == list(range(cut, 11))
    assert xs(ArrowDataset(two).skip(5).repeat(2)) == [*range(5, 11), *range(11)][:6] + list(range(5, 11))


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_position_in_a_file_that_has_changed(tmp_path, make):
    def write_batches(*sizes):
        with make(tmp_path / "a", pa.schema([("x", pa.int64())])) as writer:
            for i, size in enumerate(sizes):
                writer.write_table(pa.table({"x": np.arange(size) + sum(sizes[:i])}))

    write_batches(3, 3, 1)
    with iter(ArrowDataset(tmp_path / "a")) as iterator:
        assert xs(itertools.islice(iterator, 5)) == list(range(5))
        state = json.loads(json.dumps(iterator.state()))
    for sizes, now in (((2, 2, 2, 1), "4 record batches"), ((1,), "1 record batch"), ((3, 2, 2), "3 record batches")):
        write_batches(*sizes)
        again = iter(ArrowDataset(tmp_path / "a"))
        again.restore(state)
        message = rf"changed since the position was saved: it was 3 record batches, \w+, and is now {now}, \w+\. Put the file back"
        with pytest.raises(DatasetError, match=message):
            list(again)
    write_batches(3, 3, 1)
    again = iter(ArrowDataset(tmp_path / "a"))
    again.restore(state)
    assert xs(again) == [5, 6]


@pytest.mark.parametrize("keep", [0, 5, 100, 0.6])
def test_files_that_are_cut_off(two, keep):
    data = two[0].read_bytes()
    two[0].write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    with pytest.raises(
        DatasetError, match=r"ArrowDataset: cannot read (record batch \d of )?'.*a': .*Copy or write the file again"
    ):
        list(ArrowDataset(two))
    lenient = iter(ArrowDataset(two, on_error="skip"))
    assert xs(lenient)[-4:] == [7, 8, 9, 10]
    assert lenient.num_skipped >= 1


def damaged(path, found, into, batch=0):
    """Write over the bytes ``found`` in a file, which are looked for once for each record batch."""
    data, at = bytearray(path.read_bytes()), -1
    for _ in range(batch + 1):
        at = data.index(found, at + 1)
    data[at : at + len(into)] = into
    path.write_bytes(data)


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_a_damaged_record_batch_is_left_out_alone(tmp_path, make):
    path = write(tmp_path / "a", numbers(0, 15), make=make, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    damaged(path, b"\x28\xb5\x2f\xfd", bytes(4), 3)  # the marks of zstd; each batch has three: numbers, offsets, texts
    lenient = iter(ArrowDataset(path, on_error="skip"))
    assert xs(lenient) == [0, 1, 2, *range(6, 15)]
    assert lenient.num_skipped == 1
    for cut in range(4):
        strict = iter(ArrowDataset(path))
        assert xs(itertools.islice(strict, min(cut, 3))) == [0, 1, 2][:cut]
        with pytest.raises(DatasetError, match=r"cannot read record batch 1 of '.*a'"):
            list(strict)


OFFSETS = """
import sys
from replicant.data import ArrowDataset
from replicant.errors import DatasetError

for path in sys.argv[1:]:
    lenient = iter(ArrowDataset(path, on_error="skip"))
    print([len(row["x"]) for row in lenient], lenient.num_skipped)
    try:
        list(ArrowDataset(path))
    except DatasetError as error:
        print(str(error).partition(" of ")[0])
"""


@pytest.mark.long
def test_damaged_offsets_are_found(tmp_path):
    """They had led out of the memory of the batch: to any values, or to the end of the process."""
    paths = []
    for items in (["s0", "s1", "s2", "s3", "s4"], [[i, i] for i in range(5)]):
        for value in (60, 2_000_000_000, -5):
            paths.append(write(tmp_path / f"{len(paths)}", pa.table({"x": items * 2}), 5))
            damaged(paths[-1], np.arange(0, 12, 2, np.int32).tobytes(), np.array([0, 2, 4, value], np.int32).tobytes())
    command = [sys.executable, "-c", OFFSETS, *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["[2, 2, 2, 2, 2] 1", "ArrowDataset: cannot read record batch 0"] * 6


def test_missing_files_and_columns(two, tmp_path):
    with pytest.raises(DatasetError, match=r"cannot read '.*none'.*Check the path"):
        list(ArrowDataset(tmp_path / "none"))
    with pytest.raises(DatasetError, match=r"'.*a' has no column 'z'"):
        list(ArrowDataset(two, columns=["z"]))
    other = write(tmp_path / "c", pa.table({"x": [1.0], "s": ["a"]}))
    with pytest.raises(DatasetError, match=r"'.*c' has other columns than the first file: column 'x' is"):
        list(ArrowDataset([*two, other]))
    assert list(ArrowDataset(write(tmp_path / "d", numbers(0, 0)))) == []


def test_a_table_in_memory():
    values = np.arange(6.0)
    table = pa.table({"x": values, "y": [0, 1, 0, 1, 0, 1]})
    dataset = ArrowDataset(table)
    assert (dataset.cardinality(), repr(dataset)) == (6, "<Dataset: ArrowDataset(6 x float64[], int64[])>")
    assert only_moves_memory([dataset.node])
    assert np.shares_memory(dataset.node.tables[0], values)
    assert [batch["x"].tolist() for batch in ArrowDataset(table, ["x"], 4)] == [[0, 1, 2, 3], [4, 5]]
    pieces = pa.concat_tables([table, table])
    assert sorted(float(row["x"]) for row in ArrowDataset(pieces).shuffle(12, seed=1)) == sorted([*values, *values])
    assert xs(ArrowDataset(table.to_batches()[0])) == list(range(6))
    assert next(iter(ArrowDataset(table.slice(2, 3)).batch(5)))["x"].tolist() == [2, 3, 4]


def test_a_table_of_lists_in_memory(tmp_path):
    table = pa.table({"l": [[1], [], [2, 3], [4], [5, 6]], "x": [0, 1, 2, 3, 4]}).slice(1)
    dataset = ArrowDataset(table)
    assert [row["l"].tolist() for row in dataset] == [[], [2, 3], [4], [5, 6]]
    assert [row["l"].tolist() for row in dataset.shuffle(2, seed=1).take(9)] != []
    (batch,) = ArrowDataset(table, batch_rows=4)
    assert batch["l"].tolist() == [[0, 0], [2, 3], [4, 0], [5, 6]]
    pairs = dataset.filter(lambda row: len(row["l"]) == 2).batch(2)
    assert next(iter(pairs))["l"].tolist() == [[2, 3], [5, 6]]
    with pytest.raises(ElementError, match=r"\['l'\] has shape \(0,\) in element 0 of the batch and \(2,\) in element 1"):
        list(dataset.batch(2))
    iterator = iter(dataset)
    _ = next(iterator)
    again = iter(ArrowDataset(table))
    again.restore(json.loads(json.dumps(iterator.state())))
    assert next(again)["l"].tolist() == [2, 3]
    cached = list(dataset.cache(str(tmp_path / "cache")))
    assert len(cached) == 4
    changed = ArrowDataset(pa.table({"l": [[], [9, 3], [4], [5, 6]], "x": [1, 2, 3, 4]}))
    with pytest.raises(DatasetError, match="settings of ArrowDataset"):
        list(changed.cache(str(tmp_path / "cache")))


def test_missing_values_of_a_table():
    table = pa.table({"x": [1, None, 3]})
    with pytest.raises(ElementError, match=r"column 'x' has no value \(null\) in row 1 of the table; 1 are missing"):
        ArrowDataset(table)
    assert xs(ArrowDataset(table, fill_null={"x": 0})) == [1, 0, 3]
    assert xs(ArrowDataset(table, on_error="skip")) == [1, 3]
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None]), pa.array(["u", None]))  # the second word is missing
    assert xs(ArrowDataset(pa.table({"x": range(4), "words": words}), on_error="skip")) == [0, 2]
    for views, kept in (
        (pa.array(["a", None, "b", "c"], pa.string_view()), [0, 2, 3]),
        (pa.array([["a"], ["b", None], None, ["c"]], pa.list_(pa.binary_view())), [0, 3]),
        (pa.array([None] * 4, pa.string_view()), []),
    ):
        assert xs(ArrowDataset(pa.table({"x": range(4), "views": views}), on_error="skip")) == kept
    with pytest.raises(ArgumentTypeError, match="ArrowDataset takes a file name"):
        ArrowDataset(3)


def test_lists_are_padded_where_pieces_meet():
    pieces = [pa.table({"l": [[1], [2, 3]]}), pa.table({"l": [[4, 5, 6]]})]
    dataset = Dataset.from_tensors(0).flat_map(lambda _: ArrowDataset(pieces[0])).concatenate(ArrowDataset(pieces[1]))
    (batch,) = dataset.padded_batch(3)
    assert batch["l"].tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6]]


OTHERS = {
    "values": ([[3.0], [1.0, 2.0]], ["a", "b"]),
    "lengths": ([[1.0, 2.0], [3.0]], ["a", "b"]),
    "number of values": ([[1.0], [2.0, 3.0, 4.0]], ["a", "b"]),
    "texts": ([[1.0], [2.0, 3.0]], ["b", "a"]),
}


@pytest.mark.parametrize("what", OTHERS)
def test_tables_with_lists_are_compared_between_workers(run_workers, what):
    def said(worker, exchange, other):
        lists, texts = [([[1.0], [2.0, 3.0]], ["a", "b"]), other][worker]
        rows = ArrowDataset(pa.table({"l": lists, "s": texts})).map(lambda row: row["l"][0]).batch(2)
        try:
            DistributedDataset(rows, Topology(2, worker, 1), lambda rows, sizes: rows, exchange=exchange)
        except DatasetError as error:
            return str(error)
        return None

    assert run_workers(2, lambda *arguments: said(*arguments, ([[1.0], [2.0, 3.0]], ["a", "b"]))) == [None, None]
    for error in run_workers(2, lambda *arguments: said(*arguments, OTHERS[what])):
        assert "the values of ArrowDataset(2 rows) on worker 1 differ from those on worker 0" in error


RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 7], pa.int32()), pa.array([5, 6, 7]))
VIEWS = pa.ListViewArray.from_arrays(pa.array([6, 0, 2, 2, 1, 0, 5]), pa.array([2, 3, 0, 1, 4, 1, 1]), pa.array(range(8)))
VIEWED = [[6, 7], [0, 1, 2], [], [2], [1, 2, 3, 4], [0], [5]]
LAYOUTS = {
    "runs": (RUNS, [5, 5, 6, 7, 7, 7, 7], np.int64),
    "runs of texts": (
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 7], pa.int16()), pa.array(["a", "", "ä"], pa.string_view())),
        ["a", "a", "", "ä", "ä", "ä", "ä"],
        object,
    ),
    "runs of a dictionary": (
        pa.RunEndEncodedArray.from_arrays(pa.array([4, 7], pa.int64()), pa.array(["a", "b"]).dictionary_encode()),
        ["a", "a", "a", "a", "b", "b", "b"],
        object,
    ),
    "views of lists": (VIEWS, VIEWED, np.int64),
    "large views of lists": (
        pa.LargeListViewArray.from_arrays(VIEWS.offsets.cast(pa.int64()), VIEWS.sizes.cast(pa.int64()), VIEWS.values),
        VIEWED,
        np.int64,
    ),
    "views of lists of runs": (
        pa.ListViewArray.from_arrays(
            VIEWS.offsets, VIEWS.sizes, pa.RunEndEncodedArray.from_arrays(pa.array([3, 8], pa.int32()), pa.array([0, 1]))
        ),
        [[int(each > 2) for each in row] for row in VIEWED],
        np.int64,
    ),
    "views of lists of texts": (
        pa.ListViewArray.from_arrays(VIEWS.offsets, VIEWS.sizes, pa.array([*"abcdefgh"], pa.string_view())),
        [["abcdefgh"[each] for each in row] for row in VIEWED],
        object,
    ),
    "a dictionary of texts in views": (
        pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 0, 1, 1, 0], pa.int8()), pa.array(["a", "b"], pa.string_view())),
        ["a", "a", "b", "a", "b", "b", "a"],
        object,
    ),
    "booleans of 8 bits": (
        pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, 1, 0, 2, -1, 0], pa.int8())),
        [False, True, True, False, True, True, False],
        np.bool_,
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_in_which_values_do_not_lie_one_after_the_other(tmp_path, name):
    array, expected, dtype = LAYOUTS[name]
    path = write(tmp_path / "file", pa.table({"x": array}))
    for source in (path, pa.table({"x": array}), pa.table({"x": pa.chunked_array([array[:4], array[4:]])})):
        assert [np.asarray(element["x"]).tolist() for element in ArrowDataset(source)] == expected
    assert ArrowDataset(path).element_spec["x"].dtype == dtype
    assert [np.asarray(each["x"]).tolist() for each in ArrowDataset(pa.table({"x": array[2:6]}))] == expected[2:6]
