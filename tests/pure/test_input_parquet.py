"""Parquet files: columns and types; positions and shares by file and row group; files that are damaged or differ."""

import ast
import itertools
import json
import re
import subprocess
import sys
import threading

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicant.data import ArrowDataset, AutoShardPolicy, Dataset, DistributedDataset, Options, ParquetDataset, TensorSpec
from replicant.errors import ArgumentError, ArgumentTypeError, ConfigurationError, DatasetError, ElementError
from replicant.input.files.columns import _numpy_columns, _parquet
from replicant.replicas._topology import Topology
from replicant.storage import _ranges

from ._division import autoshard


def numbers(start, stop):
    return pa.table({"x": np.arange(start, stop), "s": pa.array([f"row {i}" for i in range(start, stop)], pa.string())})


def write(path, table, group=3):
    pq.write_table(table, path, row_group_size=group)
    return path


def xs(elements):
    return [int(element["x"]) for element in elements]


def lists(element):
    return {name: lists(value) if isinstance(value, dict) else np.asarray(value).tolist() for name, value in element.items()}


@pytest.fixture
def two(tmp_path):
    """Files of 7 rows in groups of 3, and of 4 rows in groups of 2."""
    return [write(tmp_path / "a", numbers(0, 7)), write(tmp_path / "b", numbers(7, 11), 2)]


# Types and columns

TABLE = pa.table(
    {
        "int": pa.array([1, 2, 3], pa.int8()),
        "half": pa.array(np.array([0.5, 1, 2], np.float16)),
        "flag": [True, False, True],
        "text": ["a", "", "é"],
        "large": pa.array(["b", "c", "d"], pa.large_string()),
        "bytes": [b"\0", b"", b"x"],
        "kind": pa.array(["u", "v", "u"]).dictionary_encode(),
        "pair": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        "grid": pa.array([[[1, 2]], [[3, 4]], [[5, 6]]], pa.list_(pa.list_(pa.float32(), 2), 1)),
        "list": [[1.0], [], [2.0, 3.0]],
        "pairs": pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int64(), 2))),
        "words": [["a", "b"], ["c"], []],
        "struct": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}],
    }
)
TENSORS = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(3, 2, 2))


def test_every_type_that_arrays_hold(tmp_path):
    path = write(tmp_path / "a", TABLE.append_column("tensor", TENSORS), 2)
    spec = ParquetDataset(path).element_spec
    rows = list(ParquetDataset(path))
    assert rows[1]["pair"].tolist() == [3, 4]
    assert rows[0]["int"].dtype == np.int8
    assert rows[0]["half"].dtype == np.float16
    assert (rows[2]["text"], rows[2]["bytes"], rows[1]["kind"], rows[2]["large"]) == ("é", b"x", "v", "d")
    assert [row["list"].tolist() for row in rows] == [[1.0], [], [2.0, 3.0]]
    assert [row["words"].tolist() for row in rows] == [["a", "b"], ["c"], []]
    assert [row["tensor"].tolist() for row in rows] == np.arange(12.0).reshape(3, 2, 2).tolist()
    assert spec["list"] == TensorSpec((None,), np.float64)
    assert spec["grid"] == TensorSpec((1, 2), np.float32)
    assert spec["struct"] == {"a": TensorSpec((), np.int64), "b": TensorSpec((), object)}
    (batch,) = ParquetDataset(path, batch_rows=5)
    assert lists(batch) == {
        "int": [1, 2, 3],
        "half": [0.5, 1, 2],
        "flag": [True, False, True],
        "text": ["a", "", "é"],
        "large": ["b", "c", "d"],
        "bytes": [b"\0", b"", b"x"],
        "kind": ["u", "v", "u"],
        "pair": [[1, 2], [3, 4], [5, 6]],
        "grid": [[[1, 2]], [[3, 4]], [[5, 6]]],
        "list": [[1, 0], [0, 0], [2, 3]],
        "pairs": [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[3, 4], [5, 6]]],
        "words": [["a", "b"], ["c", ""], ["", ""]],
        "struct": {"a": [1, 2, 3], "b": ["x", "y", "z"]},
        "tensor": np.arange(12.0).reshape(3, 2, 2).tolist(),
    }


def test_elements_have_the_spec_that_is_told(tmp_path):
    path = write(tmp_path / "a", TABLE, 2)
    batches = ParquetDataset(path, batch_rows=2)
    assert batches.element_spec["grid"] == TensorSpec((None, 1, 2), np.float32)
    assert batches.element_spec["list"] == TensorSpec((None, None), np.float64)
    for batch in batches:
        for name, spec in batches.element_spec.items():
            if name != "struct":
                assert batch[name].dtype == spec.dtype
                assert len(batch[name].shape) == len(spec.shape)


def test_numbers_are_not_copied(tmp_path):
    path = write(tmp_path / "a", pa.table({"x": np.arange(100.0)}), 100)
    one, other = list(ParquetDataset(path, batch_rows=50))
    assert one["x"].base is not None
    assert other["x"].__array_interface__["data"][0] - one["x"].__array_interface__["data"][0] == 400


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([0], pa.timestamp("s")), "'c' has the type timestamp.ms., which no array holds. Dates and times are not numbers"),
        (pa.array([1], pa.decimal128(5, 1)), "decimal128.*Write it as float64 or int64, or leave the column out: name the others"),
        (pa.array([[[1]]]), r"list<element: list<element: int64>>.*fixed-size lists"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "map<string, int64.*Write it as numbers"),
    ],
)
def test_types_that_no_array_holds(tmp_path, column, message):
    path = write(tmp_path / "a", pa.table({"c": column, "x": [1]}))
    with pytest.raises(DatasetError, match=f"ParquetDataset: column {message}|{message}"):
        next(iter(ParquetDataset(path)))
    assert list(ParquetDataset(path, columns=["x"])) == [{"x": 1}]


def test_batches_go_on_over_row_groups_and_files(two):
    batches = list(ParquetDataset(two, columns=["x"], batch_rows=4))
    assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert ParquetDataset(two, batch_rows=4).cardinality() == 3


def test_cardinality(two, tmp_path):
    assert ParquetDataset(two).cardinality() == 11
    assert ParquetDataset(two, filters=[("x", ">", 3)]).cardinality() == Dataset.UNKNOWN
    assert ParquetDataset(two, on_error="skip").cardinality() == Dataset.UNKNOWN
    assert ParquetDataset(Dataset.list_files(str(tmp_path / "*"))).cardinality() == Dataset.UNKNOWN
    many = ParquetDataset([two[0]] * 257)
    assert many.cardinality() == Dataset.UNKNOWN
    write(two[0], numbers(0, 3))
    assert ParquetDataset(two).cardinality() == 7


def test_filters(two):
    assert xs(ParquetDataset(two, filters=[("x", ">", 4)])) == [5, 6, 7, 8, 9, 10]
    assert xs(ParquetDataset(two, columns=["x"], filters=pc.field("s") == "row 6")) == [6]
    assert list(ParquetDataset(two, filters=[("x", "<", 0)])) == []
    assert list(ParquetDataset(two, batch_rows=3, filters=[("x", "<", 0)])) == []
    label = repr(ParquetDataset(two, columns=["x"], filters=[("x", ">", 4)]))
    assert label == "<Dataset: files(2 files) > ParquetDataset(columns=['x'], filters=(x > 4))>"
    # Of long lists, Arrow shows the ends.
    kept = [[*range(100), middle, *range(200, 300)] for middle in (150, 151)]
    labels = [repr(ParquetDataset(two, filters=pc.field("x").isin(each))) for each in (*kept, kept[0])]
    assert labels[0] == labels[2] != labels[1]


def test_names_with_dots_beside_structs(tmp_path):
    """``a.b`` is a column, and not the part of the column ``a``."""
    path = write(tmp_path / "a", pa.table({"a": [{"b": 1}, {"b": 2}], "a.b": [10, 20]}))
    for filters in (None, pc.field("a.b") > 0):
        assert [lists(row) for row in ParquetDataset(path, columns=["a.b"], filters=filters)] == [{"a.b": 10}, {"a.b": 20}]
        assert [lists(row) for row in ParquetDataset(path, columns=["a"], filters=filters)] == [{"a": {"b": 1}}, {"a": {"b": 2}}]


def test_long_filters_have_names_of_their_own(two):
    """A position or cache of one must not be taken for that of the other, though Arrow shows only the ends of long lists."""
    one, same, other = ([*range(20), middle, *range(20)] for middle in (30, 30, 31))
    labels = [ParquetDataset(two, filters=pc.field("x").isin(values)).node.label for values in (one, same, other)]
    assert labels[0] == labels[1] != labels[2]


@pytest.mark.parametrize("options", [{"filters": [("x", ">", 3)]}, {"on_error": "skip"}], ids=["filtered", "lenient"])
def test_tensors_in_row_groups_that_are_left_out(tmp_path, options):
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(6, 2, 2))
    path = write(tmp_path / "a", pa.table({"x": range(6), "t": tensors}))
    if "filters" not in options:
        damage_group(path, 0)
    assert [row["t"].tolist() for row in ParquetDataset(path, **options)][-2:] == [[[16, 17], [18, 19]], [[20, 21], [22, 23]]]


def test_a_filter_leaves_row_groups_unread(two):
    data = bytearray(two[0].read_bytes())
    begin = pq.ParquetFile(two[0]).metadata.row_group(0).column(0).data_page_offset
    data[begin : begin + 8] = bytes(8)
    two[0].write_bytes(data)
    assert xs(ParquetDataset(two, columns=["x"], filters=[("x", ">", 3)])) == list(range(4, 11))


# Missing values


@pytest.mark.parametrize(
    ("values", "expected"),
    [(["a", None], "''"), ([b"a", None], "b''"), ([True, None], "False"), ([1.5, None], "0"), ([1, None], "0")],
)
def test_the_error_about_a_missing_value_says_what_may_stand_for_it(tmp_path, values, expected):
    """It had been 0 for every column, which a column of texts refuses."""
    path = write(tmp_path / "a", pa.table({"x": values}))
    with pytest.raises(
        ElementError, match=rf"column 'x' has no value.*Give a value to use instead: fill_null=\{{'x': {expected}\}}, or"
    ):
        list(ParquetDataset(path))
    filled = list(ParquetDataset(path, fill_null={"x": ast.literal_eval(expected)}))
    assert filled[1]["x"] == ast.literal_eval(expected)


def test_missing_values(tmp_path):
    path = write(tmp_path / "a", pa.table({"x": [0, 1, 2, 3, None, None], "y": ["a", None, "c", "d", "e", "f"]}))
    with pytest.raises(ElementError, match=r"column 'y' has no value \(null\) in row 1 of row group 0 of '.*a'; 1 are missing"):
        list(ParquetDataset(path))
    with pytest.raises(
        ElementError, match=r"column 'x'.*row 1 of row group 1 of.*; 2 are missing there. Give.*fill_null=\{'x': 0\}"
    ):
        list(ParquetDataset(path, columns=["x"]))
    filled = list(ParquetDataset(path, fill_null={"x": -1, "y": "?"}))
    assert [(int(row["x"]), row["y"]) for row in filled] == [(0, "a"), (1, "?"), (2, "c"), (3, "d"), (-1, "e"), (-1, "f")]
    assert filled[4]["x"].dtype == np.int64
    assert xs(ParquetDataset(path, on_error="skip")) == [0, 2, 3]
    with pytest.raises(ElementError, match=r"fill_null gives 'no' for column 'x', which holds int64"):
        list(ParquetDataset(path, fill_null={"x": "no", "y": ""}))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1.0], None], r"column 'c'.* in row 1 .*Write empty lists and complete structs instead"),
        ([[1.0], [2.0, None]], r"column 'c\[\]'.* in item 2 .*fill_null=\{'c': 0\}"),
        ([{"a": 1}, {"a": None}], r"column 'c.a'.* in row 1 "),
        ([{"a": 1}, None], r"column 'c'.* in row 1 .*complete structs"),
    ],
)
def test_missing_values_inside(tmp_path, column, message):
    with pytest.raises(ElementError, match=message):
        list(ParquetDataset(write(tmp_path / "a", pa.table({"c": column}))))


@pytest.mark.parametrize(
    ("column", "fill", "expected"),
    [
        ([1, None], {"c": 0.5}, "fill_null gives 0.5 for column 'c', which holds int64: "),
        ([1, None], {"c": 1 << 70}, "fill_null gives 1180591620717411303424 for column 'c', which holds int64: "),
        ([1, None], {"c": 3.0}, [1, 3]),
        ([1, None], {"c": np.int64(3)}, [1, 3]),
        ([0.5, None], {"c": 3}, [0.5, 3]),
        ([[1, None], [None, None]], {"c": 3}, [[1, 3], [3, 3]]),
    ],
)
def test_what_stands_for_missing_values_is_that_value(tmp_path, column, fill, expected):
    path = write(tmp_path / "a", pa.table({"c": column}))
    if isinstance(expected, str):
        with pytest.raises(ElementError, match=f"ParquetDataset: {expected}"):
            list(ParquetDataset(path, fill_null=fill))
    else:
        assert [row["c"].tolist() for row in ParquetDataset(path, fill_null=fill)] == expected


def test_fill_null_names_whole_columns(tmp_path):
    """Also if a name has a dot in it, or ends like an item of a list."""
    table = pa.table({"a": [{"b": 1}, {"b": None}], "a.b": [None, 7], "l[]": [[[1, None]], [[2, 3]]]}).cast(
        pa.schema({"a": pa.struct({"b": pa.int64()}), "a.b": pa.int64(), "l[]": pa.list_(pa.list_(pa.int64(), 2))})
    )
    path = write(tmp_path / "a", table)
    whole = {"a": 5, "a.b": 6, "l[]": 8}
    assert [lists(row) for row in ParquetDataset(path, fill_null=whole)] == [
        {"a": {"b": 1}, "a.b": 6, "l[]": [[1, 8]]},
        {"a": {"b": 5}, "a.b": 7, "l[]": [[2, 3]]},
    ]
    for key, part in (("a", "a.b"), ("a.b", "a.b"), ("l[]", "l[][][]")):
        others = {name: value for name, value in whole.items() if name != key}
        with pytest.raises(ElementError, match=rf"column {re.escape(repr(part))} .*fill_null=\{{{re.escape(repr(key))}: 0\}}, or"):
            list(ParquetDataset(path, fill_null=others))
    with pytest.raises(ArgumentError, match=r"fill_null names \['a'\], but the columns that are read are \['a.b'\]. Name them"):
        ParquetDataset(path, columns=["a.b"], fill_null={"a": 5})


def test_fill_null_of_a_column_that_is_not_there(tmp_path):
    table = pa.table({"x": [1.0, None]})
    path = write(tmp_path / "a", table)
    message = r"has no column 'y', which fill_null names. Its columns are \['x'\]"
    for on_error in ("raise", "skip"):
        with pytest.raises(DatasetError, match=f"ParquetDataset: '.*a' {message}"):
            list(ParquetDataset(path, fill_null={"x": 0, "y": 0}, on_error=on_error))
        with pytest.raises(DatasetError, match=f"ArrowDataset: the table {message}"):
            ArrowDataset(table, fill_null={"y": 0}, on_error=on_error)


@pytest.mark.parametrize(("fill", "shown"), [(1e300, "1e\\+300"), (-1e39, "-1e\\+39")])
def test_a_filling_beyond_the_type_is_refused(tmp_path, fill, shown):
    path = write(tmp_path / "a", pa.table({"x": pa.array([1, None], pa.float32())}))
    with pytest.raises(ElementError, match=f"fill_null gives {shown} for column 'x', which holds float: it would become -?inf"):
        list(ParquetDataset(path, fill_null={"x": fill}))
    assert np.isinf(list(ParquetDataset(path, fill_null={"x": np.inf}))[1]["x"])


# What is left out with on_error="skip"


WITH_NULLS = {  # columns of 3 rows, and which rows have all values
    "number": ([0, None, 2], [0, 2]),
    "list": ([[1], None, [2, 3]], [0, 2]),
    "item": ([[1], [2, None], []], [0, 2]),
    "item of a fixed list": (pa.array([[1, 2], [3, None], [4, 5]], pa.list_(pa.int64(), 2)), [0, 2]),
    "item of a list of lists": (pa.array([[[1, 2]], [[3, 4], [5, None]], []], pa.list_(pa.list_(pa.int64(), 2))), [0, 2]),
    "struct": ([{"a": 1, "b": 2}, None, {"a": None, "b": 3}], [0]),
    "list in a struct": ([{"l": [1]}, {"l": [1, None]}, {"l": None}], [0]),
    "category": (pa.array(["u", None, "u"]).dictionary_encode(), [0, 2]),
    "only nulls": (pa.array([None, None, None], pa.int64()), []),
}


@pytest.mark.parametrize("name", WITH_NULLS)
def test_rows_without_all_values_are_left_out(tmp_path, name):
    column, kept = WITH_NULLS[name]
    table = pa.table({"x": [0, 1, 2], "c": column})
    iterator = iter(ParquetDataset(write(tmp_path / "a", table), on_error="skip"))
    assert xs(iterator) == kept
    assert iterator.num_skipped == 3 - len(kept)
    assert xs(ArrowDataset(table, on_error="skip")) == kept
    assert xs(ArrowDataset(pa.concat_tables([table.slice(1), table]), on_error="skip")) == [*[x for x in kept if x], *kept]
    for dataset in (ParquetDataset(tmp_path / "a", ["x"], on_error="skip"), ArrowDataset(table, ["x"], on_error="skip")):
        iterator = iter(dataset)
        assert (xs(iterator), iterator.num_skipped) == ([0, 1, 2], 0)  # nothing is missing in what is read


def test_rows_for_whose_missing_values_something_stands_are_kept(tmp_path):
    table = pa.table({"x": [0, None, 2, 3], "y": [0, 1, None, 3], "l": [[1], [None], [2], None]})
    path = write(tmp_path / "a", table)
    for make in (ParquetDataset, lambda path, **options: ArrowDataset(pq.read_table(path), **options)):
        rows = make(path, fill_null={"x": -1, "l": 7}, on_error="skip")
        assert [lists(row) for row in rows] == [{"x": 0, "y": 0, "l": [1]}, {"x": -1, "y": 1, "l": [7]}]
    iterator = iter(ParquetDataset(path, fill_null={"x": -1, "l": 7}, on_error="skip"))
    assert (len(list(iterator)), iterator.num_skipped) == (2, 2)


@pytest.mark.parametrize("batch_rows", [None, 2])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["lable"]}, "'.*' has no column 'lable'. Its columns are "),
        ({"filters": [("z", ">", 1)]}, "cannot be filtered by"),
        ({"filters": [("s", ">", 1)]}, "cannot be filtered by"),
        ({}, "cannot read '.*none'.*No such file"),
    ],
)
def test_what_is_wrong_with_every_file_is_not_left_out(tmp_path, two, options, message, batch_rows):
    """It is more likely a wrong name than damage. It had given no rows, and not a word."""
    files = two if options else [tmp_path / "none", tmp_path / "none too"]
    with pytest.raises(DatasetError, match=f"ParquetDataset: .*{message}"):
        list(ParquetDataset(files, on_error="skip", batch_rows=batch_rows, **options))


# Positions and shares


@pytest.mark.parametrize(
    "make",
    [
        ParquetDataset,
        lambda files: ParquetDataset(files, columns=["x"], batch_rows=2),
        lambda files: ParquetDataset(files, filters=[("x", "!=", 4)]),
        lambda files: ParquetDataset(files).skip(2).repeat(2).shard(3, 1),
        lambda files: ParquetDataset(files).shuffle(5, seed=1),
        lambda files: ParquetDataset(files, on_error="skip"),
    ],
    ids=["rows", "batches", "filtered", "skipped", "shuffled", "lenient"],
)
def test_a_position_leads_to_the_same_rest_from_every_point(two, make):
    def plain(elements):
        return [np.asarray(element["x"]).tolist() for element in elements]

    whole = plain(make(two))
    assert len(whole) >= 6
    for cut in range(len(whole) + 1):
        with iter(make(two)) as iterator:
            assert plain(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(make(two))
        again.restore(state)
        assert json.loads(json.dumps(again.state())) == state
        assert plain(again) == whole[cut:], cut


@given(
    files=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=4),
    batch_rows=st.none() | st.integers(1, 5),
    shared=st.tuples(st.integers(1, 5), st.sampled_from([AutoShardPolicy.AUTO, AutoShardPolicy.DATA])),
    cut=st.integers(0, 20),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_row_once_on_any_workers_and_the_same_rest_from_any_position(tmp_path, files, batch_rows, shared, cut):
    """``files`` holds the sizes of each file's row groups."""
    counter, (num_workers, policy) = itertools.count(), shared
    paths = []
    for i, groups in enumerate(files):
        paths.append(tmp_path / f"{i}")
        with pq.ParquetWriter(paths[-1], pa.schema([("x", pa.int64())])) as writer:
            for size in groups:
                writer.write_table(pa.table({"x": pa.array(itertools.islice(counter, size), pa.int64())}), row_group_size=10)
    total = next(counter)
    dataset = ParquetDataset(paths, batch_rows=batch_rows)
    seen = []
    for worker in range(num_workers):
        own = Dataset(autoshard(dataset.node, num_workers, worker, policy)[0])
        found = [np.asarray(element["x"]).tolist() for element in own]
        with iter(own) as iterator:
            begun = list(itertools.islice(iterator, cut))
            state = iterator.state()
        again = iter(own)
        again.restore(state)
        assert [np.asarray(element["x"]).tolist() for element in again] == found[len(begun) :]
        if own.cardinality() >= 0:
            assert own.cardinality() == len(found)
        seen.append(found if batch_rows is None else sum(found, []))
    if autoshard(dataset.node, num_workers, 0, policy)[1].shared:
        assert seen == [list(range(total))] * num_workers
    else:
        assert sorted(sum(seen, [])) == list(range(total))


def joined(rows, sizes):
    return rows.tolist()


def test_workers_share_row_groups_where_there_are_too_few_files(two):
    dataset = ParquetDataset(two, columns=["x"]).batch(2)
    plan = dataset.explain(num_workers=4)
    assert (plan.policy, plan.reason) == (
        AutoShardPolicy.FILE,
        "everything is read from files, and 5 row groups are enough for 4 workers",
    )
    assert plan.workers[0].files == (f"{two[0]} (row group 0)", f"{two[1]} (row group 1)")
    assert dataset.explain(num_workers=2).workers[1].files == (str(two[1]),)
    everything = dataset.explain(num_workers=6)
    assert (everything.policy, everything.reason) == (AutoShardPolicy.DATA, "2 files cannot be shared among 6 workers")
    shares = [xs(Dataset(autoshard(dataset.unbatch().node, 4, i, AutoShardPolicy.FILE)[0])) for i in range(4)]
    assert shares == [[0, 1, 2, 9, 10], [3, 4, 5], [6], [7, 8]]
    with pytest.raises(DatasetError, match="FILE cannot share 2 files among 6 workers"):
        autoshard(dataset.node, 6, 0, AutoShardPolicy.FILE)


def test_a_position_goes_on_with_another_number_of_workers_under_data(two):
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    dataset = ParquetDataset(two, columns=["x"]).batch(4).with_options(options)

    def worker(index, num_workers):
        return iter(DistributedDataset(dataset, Topology(num_workers, index), joined))

    with worker(1, 2) as iterator:
        assert next(iterator)["x"] == [2, 3]
        state = json.loads(json.dumps(iterator.state()))
    rest = []
    for index in range(3):
        with worker(index, 3) as iterator:
            iterator.restore(state)
            rest.append([step["x"] for step in iterator])
    assert [sum(step, []) for step in zip(*rest, strict=True)] == [[4, 5, 6, 7], [8, 9, 10]]


def test_two_threads_read_independently(two):
    dataset, found = ParquetDataset(two * 5), [[], []]
    threads = [threading.Thread(target=lambda own=own: own.extend(xs(dataset))) for own in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [list(range(11)) * 5] * 2


# Files that are empty, damaged or different


@pytest.mark.parametrize("batch_rows", [None, 3])
def test_files_without_rows(tmp_path, two, batch_rows):
    empty = write(tmp_path / "empty", numbers(0, 0))
    assert list(ParquetDataset(empty, batch_rows=batch_rows)) == []
    assert ParquetDataset(empty).element_spec == ParquetDataset(two).element_spec
    mixed = ParquetDataset([empty, two[0], empty, two[1], empty], batch_rows=batch_rows)
    assert sum(np.size(element["x"]) for element in mixed) == 11
    one = write(tmp_path / "one", numbers(0, 1))
    assert list(ParquetDataset(one)) == [{"s": "row 0", "x": 0}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "cannot read '.*bad': .* 0 bytes.*Copy or write the file again"),
        (lambda data: data[:-9], "cannot read '.*bad': Parquet magic bytes not found.*Copy or write"),
        (lambda data: b"x,y\n" * 30, "cannot read '.*bad': Parquet magic bytes not found"),
    ],
)
def test_files_that_are_no_parquet(tmp_path, two, change, message):
    bad = tmp_path / "bad"
    bad.write_bytes(change(two[0].read_bytes()))
    with pytest.raises(DatasetError, match=f"ParquetDataset: {message}"):
        list(ParquetDataset(bad))
    iterator = iter(ParquetDataset([two[1], bad], columns=["x"]))
    assert xs(itertools.islice(iterator, 4)) == [7, 8, 9, 10]
    with pytest.raises(DatasetError, match=message):
        next(iterator)
    lenient = iter(ParquetDataset([bad, two[1]], on_error="skip"))
    assert xs(lenient) == [7, 8, 9, 10]
    assert lenient.num_skipped == 1


def test_a_missing_file(tmp_path):
    with pytest.raises(DatasetError, match=r"ParquetDataset: cannot read '.*none'.*No such file or directory.*Check the path"):
        list(ParquetDataset(tmp_path / "none"))


def damage_group(path, group):
    data = bytearray(path.read_bytes())
    begin = pq.ParquetFile(path).metadata.row_group(group).column(0).dictionary_page_offset
    data[begin : begin + 8] = b"\xff" * 8
    path.write_bytes(data)
    return begin


def test_a_damaged_row_group_is_named_after_the_rows_before_it(two):
    begin = damage_group(two[0], 1)
    iterator = iter(ParquetDataset(two))
    assert xs(itertools.islice(iterator, 3)) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(DatasetError, match=rf"cannot read row group 1 of '{two[0]}', which begins at byte {begin}: .*Copy"):
            next(iterator)


def test_a_row_group_whose_description_is_damaged(tmp_path):
    """The description names the codec: a byte that is 0, for no compression, becomes 30, the code of number 15, which is none."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": list(range(30))}), path, compression="none", use_dictionary=False)
    sound = path.read_bytes()
    footer = range(len(sound) - 8 - int.from_bytes(sound[-8:-4], "little"), len(sound) - 8)
    messages = list[str]()
    for at in footer:
        if sound[at] == 0:
            path.write_bytes(sound[:at] + bytes([30]) + sound[at + 1 :])
            try:
                list(ParquetDataset(path))
            except DatasetError as error:
                messages.append(str(error))
    assert (
        f"ParquetDataset: cannot read row group 0 of {str(path)!r}, because what the file says about it is damaged (Unsupported "
        "compression codec value: 15). Copy or write the file again."
    ) in messages


def test_a_position_in_a_file_that_is_gone_is_not_one_in_the_next(two):
    with iter(ParquetDataset(two, on_error="skip")) as iterator:
        assert xs(itertools.islice(iterator, 5)) == list(range(5))
        state = iterator.state()
    two[0].unlink()
    again = iter(ParquetDataset(two, on_error="skip"))
    again.restore(state)
    assert (xs(again), again.num_skipped) == ([7, 8, 9, 10], 1)


def test_skipped_rows_are_counted(two):
    damage_group(two[0], 1)
    dataset = ParquetDataset(two, columns=["x"], on_error="skip").batch(3)
    with iter(DistributedDataset(dataset, Topology(), joined)) as iterator:
        assert [step["x"] for step in iterator] == [[0, 1, 2], [6, 7, 8], [9, 10]]
        stats = iterator.stats()
    assert (stats.num_skipped, stats.num_examples) == (3, 8)
    assert ", 3 records skipped" in str(stats)
    for threads in (None, 2):
        inside = iter(
            Dataset.from_tensor_slices([*map(str, two)]).interleave(
                lambda name: ParquetDataset(Dataset.from_tensors(name), on_error="skip"), 2, 1, threads
            )
        )
        assert len(list(inside)) == 8
        assert inside.num_skipped == 3


@pytest.mark.parametrize("filters", [None, [("x", ">=", 0)]], ids=["all", "filtered"])
def test_a_flipped_bit_is_found(tmp_path, filters):
    table = pa.table({"x": np.arange(1000)})
    pq.write_table(table, tmp_path / "a", compression="none", use_dictionary=False, write_page_checksum=True)
    data = bytearray((tmp_path / "a").read_bytes())
    data[3000] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DatasetError, match=r"cannot read row group 0 of '.*a'.*CRC checksum"):
        list(ParquetDataset(tmp_path / "a", filters=filters))


@pytest.mark.parametrize("filters", [None, [("x", ">=", 0)]], ids=["all", "filtered"])
def test_a_file_that_is_replaced_while_it_is_read(two, filters):
    """All rows come from the file that was opened, of which another one has taken the name."""
    iterator = iter(ParquetDataset(two[0], filters=filters))
    assert xs(itertools.islice(iterator, 2)) == [0, 1]
    write(two[1], numbers(1000, 1007)).replace(two[0])
    assert xs(iterator) == [2, 3, 4, 5, 6]
    assert xs(ParquetDataset(two[0], filters=filters)) == list(range(1000, 1007))


def test_a_file_that_is_deleted_or_cut_off_while_it_is_read(two):
    iterator = iter(ParquetDataset(two[0]))
    next(iterator)
    two[0].unlink()
    assert xs(iterator) == [1, 2, 3, 4, 5, 6]  # the open file is still there
    iterator = iter(ParquetDataset(two[1]))
    next(iterator)
    with two[1].open("r+b") as file:
        file.truncate(10)
    next(iterator)
    with pytest.raises(DatasetError, match="cannot read row group 1 of"):
        next(iterator)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (pa.table({"x": [1]}), "it has no column 's'"),
        (pa.table({"x": [1], "s": ["a"], "z": [1]}), "it has a column 'z' more"),
        (pa.table({"x": [1.0], "s": ["a"]}), r"column 'x' is TensorSpec\(shape=\(\), dtype=float64\) instead of .*int64"),
        (pa.table({"x": [[1]], "s": ["a"]}), r"column 'x' is TensorSpec\(shape=\(None,\), dtype=int64\) instead"),
    ],
)
def test_files_with_other_columns_than_the_first(tmp_path, two, other, message):
    dataset = ParquetDataset([two[1], write(tmp_path / "c", other)])
    iterator = iter(dataset)
    assert len(list(itertools.islice(iterator, 4))) == 4
    with pytest.raises(DatasetError, match=f"'.*c' has other columns than the first file: {message}.*Name columns that all files"):
        next(iterator)
    own = autoshard(dataset.node, 2, 1, AutoShardPolicy.FILE)[0]  # the file is the first that this worker reads
    with pytest.raises(DatasetError, match=message):
        next(iter(Dataset(own)))


def test_the_same_columns_in_another_order_or_encoding(tmp_path, two):
    other = pa.table({"s": pa.array(["a"]).dictionary_encode(), "x": [11]})
    assert xs(ParquetDataset([*two, write(tmp_path / "c", other)])) == list(range(12))


CHANGED = {  # what the file of 3 row groups of 7 rows becomes
    "fewer groups": (lambda path: write(path, numbers(0, 4)), "2 row groups of 4 rows"),
    "fewer rows": (lambda path: write(path, numbers(0, 2)), "1 row group of 2 rows"),
    "other groups": (lambda path: write(path, numbers(0, 7), 5), "2 row groups of 7 rows"),
    "groups of other sizes": (lambda path: in_groups(path, [2, 3, 2]), "3 row groups of 7 rows"),
}


def in_groups(path, sizes):
    with pq.ParquetWriter(path, numbers(0, 0).schema) as writer:
        for i, size in enumerate(sizes):
            writer.write_table(numbers(sum(sizes[:i]), sum(sizes[:i]) + size))


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_position_in_a_file_that_has_changed(two, name, on_error):
    change, now = CHANGED[name]
    with iter(ParquetDataset(two, on_error=on_error)) as iterator:
        assert xs(itertools.islice(iterator, 5)) == [0, 1, 2, 3, 4]
        state = json.loads(json.dumps(iterator.state()))
    change(two[0])
    message = (
        rf"ParquetDataset: '{two[0]}' has changed since the position was saved: it was 3 row groups of 7 rows, \w+, and is now "
        rf"{now}, \w+\. Put the file back as it was, or start the pass again\."
    )
    for refused in (list, lambda iterator: iterator._pass.cursor.skip(3)):
        again = iter(ParquetDataset(two, on_error=on_error))
        again.restore(state)
        with pytest.raises(DatasetError, match=message):
            refused(again)
    write(two[0], numbers(0, 7))  # as it was
    with iter(ParquetDataset(two, on_error=on_error)) as again:
        again.restore(state)
        assert xs(again) == list(range(5, 11))


def test_a_row_group_that_is_gone_since_the_workers_shared_them(two):
    own = Dataset(autoshard(ParquetDataset(two).node, 4, 2, AutoShardPolicy.FILE)[0])  # row group 2 of the first file
    write(two[0], numbers(0, 4))
    assert own.cardinality() == Dataset.UNKNOWN
    with pytest.raises(
        DatasetError, match=rf"the position is in row group 2, row 0 of '{two[0]}', which has 2 of them now.*make the"
    ):
        list(own)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ParquetDataset([]), ArgumentError, "there is no file name"),
        (lambda: ParquetDataset(3), ArgumentTypeError, "takes a file name"),
        (lambda: ParquetDataset("a", columns="x"), ArgumentTypeError, "columns must be a list of names, or None for all"),
        (lambda: ParquetDataset("a", columns=[]), ArgumentError, "columns must name at least one column, and each once"),
        (lambda: ParquetDataset("a", columns=["x", "x"]), ArgumentError, "each once. Received: .'x', 'x'."),
        (lambda: ParquetDataset("a", batch_rows=0), ArgumentError, "batch_rows must be at least 1. Received: 0"),
        (lambda: ParquetDataset("a", filters=[1]), ArgumentTypeError, r"filters must be a list such as .* Received: \[1\]"),
        (lambda: ParquetDataset("a", fill_null=0), ArgumentTypeError, "fill_null must be a dict of values by column"),
        (lambda: ParquetDataset("a", on_error="no"), ArgumentError, 'on_error must be "raise" or "skip". Received: \'no\''),
    ],
)
def test_refused(make, error, message):
    with pytest.raises(error, match=f"ParquetDataset.*{message}"):
        make()


def test_columns_that_are_not_there(two):
    with pytest.raises(DatasetError, match=r"'.*a' has no column 'z'. Its columns are \['x', 's'\]"):
        list(ParquetDataset(two, columns=["x", "z"]))
    with pytest.raises(DatasetError, match=r"'.*a' cannot be filtered by \(z > 1\).*Its columns are \['x', 's'\]"):
        list(ParquetDataset(two, filters=[("z", ">", 1)]))
    with pytest.raises(DatasetError, match="there is no column to read"):
        _numpy_columns.Columns("ParquetDataset").spec(pa.schema([]))


def test_without_pyarrow(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"ParquetDataset reads with PyArrow.*Run: pip install 'replicant-jax\[columns\]'"):
        ParquetDataset("a")


@pytest.fixture
def one_thread_of_arrow():
    """Each of Arrow's threads may keep what it has read until it reads again, so that the memory would depend on their number."""
    before = pa.cpu_count()
    pa.set_cpu_count(1)
    yield
    pa.set_cpu_count(before)


@pytest.mark.usefixtures("one_thread_of_arrow")
def test_memory_is_that_of_a_row_group(tmp_path):
    path = tmp_path / "a"
    rows = np.arange(100_000.0)
    with pq.ParquetWriter(path, pa.schema([("x", pa.float64())])) as writer:
        for _ in range(32):
            writer.write_table(pa.table({"x": rows}), row_group_size=len(rows))
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    for _ in ParquetDataset(path, batch_rows=10_000):
        most = max(most, pool.bytes_allocated() - before)
    assert rows.nbytes <= most < 8 * rows.nbytes  # a row group, as it is in the file and as an array, and the batches of it


# Large row groups, which are read in pieces


@pytest.fixture
def in_pieces(monkeypatch):
    """Row groups are read in pieces of one row."""
    monkeypatch.setattr(_parquet, "_LARGE", 8)


def large(path, rows=9, group=4):
    table = pa.table(
        {
            "x": np.arange(rows),
            "s": [f"row {i}" for i in range(rows)],
            "list": [[float(i)] * (i % 3) for i in range(rows)],
            "struct": [{"a": i, "b": [i, i]} for i in range(rows)],
        }
    )
    return write(path, table.append_column("a.b", pa.array(np.arange(rows) * 2)), group)


@pytest.mark.parametrize("columns", [None, ["x"], ["a.b", "list"], ["struct"]], ids=str)
@pytest.mark.parametrize(
    "filters",
    [None, [("x", ">", 2)], pc.field("a.b") * 2 < 11, [("x", "==", 100)], pc.field("s").isin(["row 1", "row 8"])],
    ids=["all", "list", "sum", "none", "texts"],
)
@pytest.mark.parametrize("batch_rows", [None, 3])
def test_pieces_are_the_rows_of_whole_row_groups(tmp_path, monkeypatch, columns, filters, batch_rows):
    dataset = ParquetDataset(large(tmp_path / "a"), columns, batch_rows, filters)
    whole = [lists(each) for each in dataset]
    assert whole or filters == [("x", "==", 100)]
    for size in (8, 400):
        monkeypatch.setattr(_parquet, "_LARGE", size)
        assert [lists(each) for each in dataset] == whole


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("options", [{}, {"filters": [("x", "!=", 5)]}, {"on_error": "skip"}], ids=["all", "filtered", "lenient"])
def test_a_position_in_a_piece_leads_to_the_same_rest(tmp_path, options):
    table = pa.table({"x": np.arange(9), "y": pa.array([None if i in (1, 6) else i for i in range(9)])})
    columns = None if options.get("on_error") else ["x"]
    dataset = ParquetDataset(write(tmp_path / "a", table, 4), columns, **options)
    expected = [0, 2, 3, 4, 5, 7, 8] if columns is None else [i for i in range(9) if i != 5 or not options]
    assert xs(dataset) == expected
    for taken in range(len(expected) + 1):
        iterator = iter(dataset)
        assert xs(itertools.islice(iterator, taken)) == expected[:taken]
        again = iter(dataset)
        again.restore(json.loads(json.dumps(iterator.state())))
        assert xs(again) == expected[taken:]
        assert xs(dataset.skip(taken)) == expected[taken:]


@pytest.mark.usefixtures("in_pieces")
def test_a_missing_value_in_a_piece(tmp_path):
    path = write(tmp_path / "a", pa.table({"x": [0, 1, None, 3]}), 4)
    iterator = iter(ParquetDataset(path))
    assert xs(itertools.islice(iterator, 2)) == [0, 1]
    for _ in range(2):  # it does not go on behind it
        with pytest.raises(ElementError, match=r"no value \(null\) in row 0 of the rows from 2 on of row group 0 of '.*a'"):
            next(iterator)
    assert xs(ParquetDataset(path, fill_null={"x": -1})) == [0, 1, -1, 3]


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("filters", [None, [("x", ">=", 0)]], ids=["all", "filtered"])
def test_damage_in_a_piece_comes_after_the_rows_before_it(tmp_path, filters):
    path = tmp_path / "a"
    pq.write_table(
        pa.table({"x": np.arange(4000)}),
        path,
        row_group_size=2000,
        data_page_size=800,
        write_batch_size=100,
        use_dictionary=False,
        compression="none",
        write_page_checksum=True,
    )
    data = bytearray(path.read_bytes())
    at = data.index(np.int64(1000).tobytes() + np.int64(1001).tobytes())
    data[at] ^= 1
    path.write_bytes(data)
    found, iterator = [], iter(ParquetDataset(path, filters=filters))
    with pytest.raises(DatasetError, match=r"cannot read row group 0 of '.*a', which begins at byte 4: .*CRC"):
        found.extend(int(element["x"]) for element in iterator)
    assert found == [*range(len(found))]
    assert 800 <= len(found) <= 1000
    lenient = iter(ParquetDataset(path, filters=filters, on_error="skip"))
    assert xs(lenient) == [*range(len(found)), *range(2000, 4000)]
    assert lenient.num_skipped == 2000 - len(found)


@pytest.mark.usefixtures("in_pieces")
def test_a_file_that_is_cut_off_while_a_piece_is_read(two):
    iterator = iter(ParquetDataset(two[1]))
    next(iterator)
    with two[1].open("r+b") as file:
        file.truncate(10)
    next(iterator)
    with pytest.raises(DatasetError, match=r"cannot read row group 1 of .*: its last 2 rows are not there"):
        next(iterator)


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("num_read_ahead", [0, 8])
@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}, {"filters": [("x", ">=", 0)]}], ids=["all", "lenient", "filtered"])
def test_a_store_that_goes_away_while_a_piece_is_read(tmp_path, monkeypatch, num_read_ahead, options):
    url, away, get = "memory://pieces/a", False, MemoryFileSystem.cat_file
    path = tmp_path / "a"
    missing = {7, 9_000, 14_000} if "on_error" in options else {}
    table = pa.table({"x": pa.array([None if i in missing else i for i in range(30_000)])})
    pq.write_table(table, path, row_group_size=15_000, data_page_size=800, use_dictionary=False)
    fsspec.filesystem("memory").pipe("/pieces/a", path.read_bytes())

    def cat_file(self, path, **rest):
        if away:
            raise ConnectionError("the store is away")
        return get(self, path, **rest)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    monkeypatch.setattr(_parquet, "_BUFFER", 1 << 12)
    monkeypatch.setattr(_parquet, "_LEAST_BUFFER", 1 << 12)
    monkeypatch.setattr(_parquet, "_LARGE", 1 << 16)
    monkeypatch.setattr(_parquet, "_READ_AHEAD", num_read_ahead)
    monkeypatch.setattr(_ranges, "_PIECE", 1 << 12)
    monkeypatch.setenv("REPLICANT_REMOTE_DEADLINE", "0.3")
    iterator = iter(ParquetDataset(url, **options))
    found = xs(itertools.islice(iterator, 100))
    away = True
    with pytest.raises(DatasetError, match=r"cannot read row group \d of 'memory://pieces/a'.* the store is away"):
        found.extend(int(element["x"]) for element in iterator)
    assert 100 < len(found) < 30_000
    away = False
    assert found + xs(iterator) == [i for i in range(30_000) if i not in missing]
    assert iterator.num_skipped in {len(missing), 2 * len(missing)}  # twice, if the row group was read again for its end
    fsspec.filesystem("memory").rm("/pieces", recursive=True)


@pytest.mark.usefixtures("one_thread_of_arrow")
@pytest.mark.parametrize("filters", [None, [("x", ">=", 0)]], ids=["all", "filtered"])
def test_memory_of_a_large_row_group_is_that_of_its_pieces(tmp_path, monkeypatch, filters):
    rows = 400_000
    table = pa.table({f"x{i}": np.arange(rows, dtype=np.float64) for i in range(4)} | {"x": np.arange(rows)})  # 16 MB
    path = tmp_path / "a"
    pq.write_table(table, path, row_group_size=rows, compression="none", use_dictionary=False)
    del table
    monkeypatch.setattr(_parquet, "_LARGE", 1 << 20)
    monkeypatch.setattr(_parquet, "_BUFFER", 1 << 16)
    pool, most = pa.default_memory_pool(), 0
    before = pool.bytes_allocated()
    for batch in ParquetDataset(path, batch_rows=1000, filters=filters):
        most = max(most, pool.bytes_allocated() - before)
        assert len(batch["x"]) == 1000
    assert most < 4 << 20


@pytest.mark.parametrize("filters", [None, [("x", ">=", 0)]])
def test_texts_that_are_not_utf8_are_damage(tmp_path, filters):
    """Without checksums, PyArrow reads them. The error was one of PyArrow, which named no file and was not left out."""
    path = tmp_path / "a"
    pq.write_table(numbers(0, 6), path, row_group_size=3, compression="none", use_dictionary=False, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"row 4", b"row \xff"))
    iterator = iter(ParquetDataset(path, filters=filters))
    assert xs(itertools.islice(iterator, 3)) == [0, 1, 2]
    with pytest.raises(DatasetError, match=r"cannot read row group 1 of '.*a', which begins at byte \d+: .*UTF8"):
        next(iterator)
    lenient = iter(ParquetDataset(path, filters=filters, on_error="skip"))
    assert xs(lenient) == [0, 1, 2]
    assert lenient.num_skipped == 3


ENCRYPTED = """
import base64, sys
import fsspec, pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq, pyarrow.parquet.encryption as pe
from replicant.data import ParquetDataset
from replicant.errors import DatasetError

class Keys(pe.KmsClient):
    def wrap_key(self, key, name):
        return base64.b64encode(key)

keys = pe.EncryptionConfiguration(footer_key="f", column_keys={"k": ["secret"]}, plaintext_footer=True)
properties = pe.CryptoFactory(lambda config: Keys()).file_encryption_properties(pe.KmsConnectionConfig(), keys)
table = pa.table({"secret": range(10), "open": range(10)})
with pq.ParquetWriter(sys.argv[1], table.schema, encryption_properties=properties) as writer:
    writer.write_table(table)
fsspec.filesystem("memory").put(sys.argv[1], "/encrypted")
above = pc.field("open") > 3
for path in (sys.argv[1], "memory://encrypted"):
    one, other = {"columns": ["open"]}, {"columns": ["secret"]}
    for options in (one, {**one, "filters": above}, {}, {"filters": above}, other):
        try:
            print(len(list(ParquetDataset(path, **options))))
        except DatasetError as error:
            print(str(error).replace(path, "PATH"))
"""


@pytest.mark.long
def test_an_encrypted_column_is_an_error_if_it_is_read(tmp_path):
    """It had ended the process, also if other columns were read."""
    command = [sys.executable, "-c", ENCRYPTED, str(tmp_path / "a")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    told = (
        "ParquetDataset: cannot read the columns {} of 'PATH': at least one of them is encrypted (Cannot decrypt ColumnMetadata. "
        "FileDecryption is not setup correctly). Name columns that are not in `columns`, or decrypt the file."
    )
    both = told.format("['secret', 'open']")
    assert run.stdout.splitlines() == ["10", "6", both, both, told.format("['secret']")] * 2


@pytest.mark.parametrize("kind", ["parquet", "file", "stream", "memory"])
def test_columns_with_one_name_are_told(tmp_path, kind):
    table, path = pa.table([[1, 2], [3, 4], [5, 6]], names=["n", "n", "m"]), tmp_path / "a"
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind != "memory":
        with (pa.ipc.new_file if kind == "file" else pa.ipc.new_stream)(path, table.schema) as writer:
            writer.write_table(table)
    dataset = ParquetDataset if kind == "parquet" else ArrowDataset
    source, where = (table, "the table") if kind == "memory" else (path, repr(str(path)))
    for columns in (None, ["n"]):
        message = re.escape(
            f"{where} has 2 columns with the name 'n', of which a row can hold one. Leave the name out of `columns`"
        )
        with pytest.raises(DatasetError, match=message):
            list(dataset(source, columns=columns))
    assert [int(row["m"]) for row in dataset(source, columns=["m"])] == [5, 6]


# Lists of structs


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_lists_of_structs_are_dicts_of_lists(tmp_path, kind):
    item = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    rows = [[{"a": 10 * i + j, "b": {"c": f"{i}.{j}"}} for j in range(i)] for i in range(5)]
    table = pa.table({"l": pa.array(rows, kind(item))})
    expected = [{"a": [each["a"] for each in row], "b": {"c": [each["b"]["c"] for each in row]}} for row in rows]
    pq.write_table(table, tmp_path / "a", row_group_size=2)
    for dataset in (ParquetDataset(tmp_path / "a"), ArrowDataset(table), ArrowDataset(table.slice(2))):
        assert dataset.element_spec == {
            "l": {"a": TensorSpec((None,), np.int64), "b": {"c": TensorSpec((None,), object)}},
        }
        found = [{"a": row["l"]["a"].tolist(), "b": {"c": row["l"]["b"]["c"].tolist()}} for row in dataset]
        assert found == expected[-len(found) :]
        assert len(found) in {3, 5}
    assert next(iter(ParquetDataset(tmp_path / "a").skip(1).padded_batch(2)))["l"]["a"].tolist() == [[10, 0], [20, 21]]


def test_values_that_are_missing_in_lists_of_structs(tmp_path):
    rows = [[{"a": 1}], [{"a": None}, {"a": 2}], None, [None], [{"a": 3}]]
    table = pa.table({"l": pa.array(rows, pa.list_(pa.struct([("a", pa.int64())])))})
    pq.write_table(table, tmp_path / "a")
    iterator = iter(ParquetDataset(tmp_path / "a", on_error="skip"))
    assert ([row["l"]["a"].tolist() for row in iterator], iterator.num_skipped) == ([[1], [3]], 3)
    filled = ParquetDataset(tmp_path / "a", fill_null={"l": 7}, on_error="skip")
    assert [row["l"]["a"].tolist() for row in filled] == [[1], [7, 2], [3]]
    for part, message in (
        (table.slice(1, 1), r"column 'l\[\]\.a\[\]' .*fill_null=\{'l': 0\}"),
        (table.slice(2, 1), "column 'l' .*complete"),
    ):
        with pytest.raises(ElementError, match=message):
            list(ArrowDataset(part))
    with pytest.raises(ElementError, match=r"column 'l\[\]' has no value .*Write empty lists and complete structs instead"):
        list(ArrowDataset(table.slice(3, 1)))
