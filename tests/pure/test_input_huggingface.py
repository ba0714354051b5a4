"""Datasets of Hugging Face: tables by number, streams by their own state."""

import itertools
import json
from pathlib import Path

import datasets
import keras
import numpy as np
import PIL.Image
import pytest

import replicant
from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, TensorSpec
from replicant.errors import ArgumentTypeError, DatasetError, ElementError
from replicant.input.files._pictures import decoded
from replicant.replicas._topology import Topology

from ._division import autoshard

COLUMNS = {"x": list(range(10)), "l": [[1] * (i % 3) for i in range(10)], "s": [f"row {i}" for i in range(10)]}


def table():
    return datasets.Dataset.from_dict(COLUMNS)


def xs(elements):
    return [int(element["x"]) for element in elements]


KINDS = {
    "table": table,
    "shuffled": lambda: table().shuffle(seed=1),
    "selected": lambda: table().select([7, 1, 1, 3]),
    "numpy": lambda: table().with_format("numpy"),
    "transformed": lambda: table().with_transform(lambda batch: {"x": [x + 1 for x in batch["x"]]}),
    "stream": lambda: table().to_iterable_dataset(num_shards=3),
    "mapped stream": lambda: (
        table().to_iterable_dataset().map(lambda row: {"x": row["x"] + 1}).filter(lambda row: row["x"] % 4 > 0)
    ),
    "shuffled stream": lambda: table().to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=1),
    "stream with a buffer": lambda: table().to_iterable_dataset(num_shards=2).shuffle(seed=1, buffer_size=4),
    "streams with a buffer in turn": lambda: datasets.interleave_datasets(
        [KINDS["stream with a buffer"](), KINDS["stream"]()], stopping_strategy="all_exhausted"
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long_cases("streams with a buffer in turn")
def test_rows_and_positions(kind):
    made = KINDS[kind]()
    whole = [row["x"] for row in made]
    dataset = Dataset.from_huggingface(made)
    assert xs(dataset) == xs(dataset) == whole
    assert len(whole) >= 4
    for cut in range(len(whole) + 1):
        with iter(Dataset.from_huggingface(KINDS[kind]())) as iterator:
            assert xs(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
            rest = xs(itertools.islice(iterator, 2))
        again = iter(Dataset.from_huggingface(KINDS[kind]()))
        again.restore(state)
        assert xs(again) == whole[cut:]
        assert rest == whole[cut : cut + 2]


def test_two_passes_of_a_stream_do_not_disturb_each_other():
    dataset = Dataset.from_huggingface(KINDS["stream"]())
    assert [int(a["x"]) - int(b["x"]) for a, b in zip(dataset, dataset, strict=True)] == [0] * 10
    assert xs(dataset.repeat(2)) == [*range(10)] * 2
    one, other = iter(dataset), iter(dataset)
    _ = next(one), [next(other) for _ in range(6)]
    again = iter(dataset)
    again.restore(one.state())
    assert xs(again) == [*range(1, 10)]


@pytest.mark.parametrize("batch", [1, 2, 10])
def test_a_function_of_the_user_makes_the_rows_of_every_pass(batch):
    calls = itertools.count()
    made = table().with_transform(lambda rows: {"x": [next(calls)] * len(rows["x"])})
    assert len({*xs(Dataset.from_huggingface(made).batch(batch).unbatch().repeat(2))}) == 20


def test_values():
    for kind in ("table", "stream"):
        dataset = Dataset.from_huggingface(KINDS[kind]())
        assert dataset.element_spec == {
            "x": TensorSpec((), np.int64),
            "l": TensorSpec((None,), np.int64),
            "s": TensorSpec((), object),
        }
        row = list(dataset)[2]
        assert (row["x"].dtype, row["l"].tolist(), row["s"]) == (np.int64, [1, 1], "row 2")
    dataset = Dataset.from_huggingface(table())
    assert (dataset.cardinality(), repr(dataset)) == (10, "<Dataset: from_huggingface(10 rows)>")
    assert next(iter(dataset.padded_batch(4)))["l"].tolist() == [[0, 0], [1, 0], [1, 1], [0, 0]]
    assert xs(Dataset.from_huggingface(table().with_format("numpy", columns=["x"])).take(2)) == [0, 1]
    assert list(Dataset.from_huggingface(table().select([]))) == []


def test_numbers_are_not_copied():
    batches = list(Dataset.from_huggingface(table().select_columns(["x"])).batch(5))
    address = [batch["x"].__array_interface__["data"][0] for batch in batches]
    assert address[1] - address[0] == 5 * 8


ORDERS = {
    "another shuffle": lambda: table().shuffle(seed=2),
    "other rows": lambda: table().select([0, 1, 2, 3, 4, 5, 6, 7, 9, 9]),
    "not shuffled": table,
}


@pytest.mark.parametrize("other", ORDERS)
def test_another_order_is_other_data(tmp_path, run_workers, other):
    other = Dataset.from_huggingface(ORDERS[other]())
    one, same = (Dataset.from_huggingface(table().shuffle(seed=1)) for _ in range(2))
    assert repr(one) == repr(other)
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()

    assert xs(one.cache(str(tmp_path / "cache"))) == xs(same.cache(str(tmp_path / "cache")))
    with pytest.raises(DatasetError, match=r"holds the elements of another pipeline .*: the rows of from_huggingface.*differ"):
        list(other.cache(str(tmp_path / "cache")))

    iterator = iter(one)
    begun = iterator.state()
    next(iterator)
    state = json.loads(json.dumps(iterator.state()))
    again, elsewhere = iter(same), iter(other)
    again.restore(state)
    assert xs(again) == xs(iterator)
    with pytest.raises(DatasetError, match=r"Hugging Face Dataset: the position was saved from other rows, .*Give every `shuffle`"):
        elsewhere.restore(state)
    elsewhere.restore(begun)
    assert len(list(elsewhere)) == 10

    def said(worker, exchange, second):
        rows = (one, second)[worker].map(lambda row: row["x"]).batch(4)
        try:
            DistributedDataset(rows, Topology(2, worker, 1), lambda rows, sizes: rows, exchange=exchange)
        except DatasetError as error:
            return str(error)
        return None

    assert run_workers(2, lambda *arguments: said(*arguments, same)) == [None, None]
    for error in run_workers(2, lambda *arguments: said(*arguments, other)):
        assert "The workers hold different data: the values of from_huggingface(10 rows) on worker 1 differ" in error


def test_what_tells_data_apart_reads_few_rows():
    made = datasets.Dataset.from_dict({"x": list(range(1_000_000))})
    read = []
    node = Dataset.from_huggingface(made).node
    rows = node.table
    object.__setattr__(node, "table", lambda chosen: read.append(chosen) or rows(chosen))
    assert node.digest == Dataset.from_huggingface(made.with_transform(lambda batch: batch)).node.digest
    assert [(len(chosen), chosen[0], chosen[-1]) for chosen in read] == [(32, 0, 999_999)]
    assert Dataset.from_huggingface(made.select([])).node.digest != node.digest


def test_what_is_not_decoded_are_bytes(tmp_path):
    (tmp_path / "b.png").write_bytes(b"png in a file")
    features = datasets.Features({"image": datasets.Image(decode=False)})
    files = [{"bytes": b"png", "path": None}, {"bytes": None, "path": str(tmp_path / "b.png")}]
    made = datasets.Dataset.from_dict({"image": files}, features=features)
    for kind in (made, made.to_iterable_dataset()):
        dataset = Dataset.from_huggingface(kind)
        assert dataset.element_spec == {"image": TensorSpec((), object)}
        assert list(dataset) == [{"image": b"png"}, {"image": b"png in a file"}]


@pytest.fixture
def pictures(tmp_path):
    """Four pictures of different modes, with their pixels in three channels, of which grey ones have three equal ones."""
    made = {
        "rgb": PIL.Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)),
        "grey": PIL.Image.fromarray(np.array([[0, 50], [100, 255]], np.uint8)),
        "grey of 16 bits": PIL.Image.fromarray(np.array([[0, 50], [100, 255]], np.uint16) * 256),
        "alpha": PIL.Image.fromarray(np.arange(16, dtype=np.uint8).reshape(2, 2, 4), "RGBA"),
    }
    paths = [str(tmp_path / f"{name}.png") for name in made]
    for path, picture in zip(paths, made.values(), strict=True):
        picture.save(path)
    grey = [[[0] * 3, [50] * 3], [[100] * 3, [255] * 3]]
    alpha = [[[0, 1, 2], [4, 5, 6]], [[8, 9, 10], [12, 13, 14]]]
    return paths, [[[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]], grey, grey, alpha]


@pytest.mark.parametrize("kind", ["paths", "bytes"])
@pytest.mark.parametrize("stream", [False, True])
def test_pictures_are_decoded_as_those_of_folders(pictures, kind, stream):
    paths, expected = pictures
    files = paths if kind == "paths" else [{"bytes": Path(path).read_bytes(), "path": None} for path in paths]
    made = datasets.Dataset.from_dict({"image": files, "label": [3, 2, 1, 0]}).cast_column("image", datasets.Image())
    dataset = Dataset.from_huggingface(made.to_iterable_dataset() if stream else made)
    assert dataset.element_spec == {"image": TensorSpec((None, None, 3), np.uint8), "label": TensorSpec((), np.int64)}
    (batch,) = dataset.batch(4)
    assert batch["image"].tolist() == expected
    assert batch["label"].tolist() == [3, 2, 1, 0]
    of_folder = [decoded(PIL.Image, "test", path, Path(path).read_bytes(), 3).tolist() for path in paths]
    assert of_folder == expected


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3), ("RGBA", 4)])
def test_the_mode_of_a_feature_decides_on_the_channels(pictures, mode, channels):
    made = datasets.Dataset.from_dict({"image": pictures[0]}).cast_column("image", datasets.Image(mode=mode))
    for each in (made, made.to_iterable_dataset()):
        assert next(iter(Dataset.from_huggingface(each).batch(4)))["image"].shape == (4, 2, 2, channels)
    with pytest.raises(
        DatasetError, match=r"column 'image' have the mode 'CMYK'\. Choose one of \['L', 'RGB', 'RGBA'\]: `dataset\.cast_"
    ):
        Dataset.from_huggingface(made.cast_column("image", datasets.Image(mode="CMYK"))).element_spec  # noqa: B018


def test_an_image_folder(pictures, tmp_path):
    made = datasets.Dataset.from_dict({"image": pictures[0]}).cast_column("image", datasets.Image())
    positions = iter(Dataset.from_huggingface(made))
    assert [row["image"].tolist() for row in itertools.islice(positions, 2)] == pictures[1][:2]
    again = iter(Dataset.from_huggingface(made))
    again.restore(json.loads(json.dumps(positions.state())))
    assert [row["image"].tolist() for row in again] == pictures[1][2:]


def test_files_that_cannot_be_read(tmp_path):
    def of(file, feature=None):
        feature = feature or datasets.Image()
        features = datasets.Features({"image": feature})
        return Dataset.from_huggingface(datasets.Dataset.from_dict({"image": [file]}, features=features))

    with pytest.raises(DatasetError, match=r"Hugging Face Dataset: cannot open '.*none\.png'"):
        list(of({"bytes": None, "path": str(tmp_path / "none.png")}))
    with pytest.raises(DatasetError, match=rf"'{tmp_path}' in column 'image' is not a regular file"):
        list(of({"bytes": None, "path": str(tmp_path)}))
    with pytest.raises(
        DatasetError, match=r"'row 0 of the dataset.*' is not a BMP.*Copy the file again, or leave it out: `dataset\.cast_"
    ):
        list(of({"bytes": b"png", "path": None}))
    with pytest.raises(
        ElementError, match=r"column 'image' has no file \(null\) in row 0.*`dataset\.filter\(lambda row: row\['image'\] is"
    ):
        list(of(None))


# Shapes and lists


@pytest.mark.parametrize("stream", [False, True])
def test_arrays_of_a_declared_shape(stream):
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    features = {
        "two": datasets.Array2D((2, 3), "float32"),
        "three": datasets.Array3D((1, 2, 3), "int32"),
        "open": datasets.Array2D((None, 3), "float32"),
        "x": datasets.Value("int64"),
    }
    rows = {
        "two": values,
        "three": values[:, None].astype(np.int32),
        "open": [values[i, : i % 2 + 1] for i in range(4)],
        "x": [0, 1, 2, 3],
    }
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    dataset = Dataset.from_huggingface(made.to_iterable_dataset() if stream else made)
    assert dataset.element_spec == {
        "open": TensorSpec((None, 3), np.float32),
        "three": TensorSpec((1, 2, 3), np.int32),
        "two": TensorSpec((2, 3), np.float32),
        "x": TensorSpec((), np.int64),
    }
    found = list(dataset)
    assert [row["two"].tolist() for row in found] == values.tolist()
    assert [row["three"].tolist() for row in found] == values[:, None].tolist()
    assert [row["open"].tolist() for row in found] == [values[i, : i % 2 + 1].tolist() for i in range(4)]
    assert [row["two"].tolist() for row in dataset.skip(1).take(2)] == values[1:3].tolist()


def test_an_array_of_another_shape_than_was_declared():
    made = datasets.Dataset.from_dict(
        {"m": [[[1, 2], [3, 4]]]}, features=datasets.Features({"m": datasets.Array2D((2, 3), "int32")})
    )
    with pytest.raises(
        ElementError,
        match=r"column 'm' was declared to have the shape \(2, 3\), but in the dataset.*2 values along axis 1 instead of 3",
    ):
        list(Dataset.from_huggingface(made))


CHAT = [
    [{"role": "user", "content": "a", "ids": 1}, {"role": "assistant", "content": "b", "ids": 2}],
    [],
    [{"role": "user", "content": "c", "ids": 3}],
]


@pytest.mark.parametrize("kind", ["table", "stream", "transformed", "mapped stream"])
def test_lists_of_dicts_are_dicts_of_lists(kind):
    made = datasets.Dataset.from_dict({"messages": CHAT})
    made = {
        "table": lambda: made,
        "stream": made.to_iterable_dataset,
        "transformed": lambda: made.with_transform(lambda batch: batch),
        "mapped stream": lambda: made.to_iterable_dataset().map(lambda row: {"messages": row["messages"]}),
    }[kind]()
    dataset = Dataset.from_huggingface(made)
    rows = [{name: column.tolist() for name, column in row["messages"].items()} for row in dataset]
    assert rows == [
        {"content": ["a", "b"], "ids": [1, 2], "role": ["user", "assistant"]},
        {"content": [], "ids": [], "role": []},
        {"content": ["c"], "ids": [3], "role": ["user"]},
    ]
    assert {name: spec.shape for name, spec in dataset.element_spec["messages"].items()} == {
        "content": (None,),
        "ids": (None,),
        "role": (None,),
    }
    assert next(iter(dataset.padded_batch(3)))["messages"]["ids"].tolist() == [[1, 2], [0, 0], [3, 0]]


def test_structs_in_lists_in_structs_after_other_rows():
    made = datasets.Dataset.from_dict({"d": [{"l": [{"a": {"b": i}}] * i} for i in range(4)]})
    dataset = Dataset.from_huggingface(made.select([3, 1, 2]))
    assert [row["d"]["l"]["a"]["b"].tolist() for row in dataset] == [[3, 3, 3], [1], [2, 2]]


def test_the_advice_can_be_followed():
    """It had named arguments that from_huggingface does not take."""
    made = datasets.Dataset.from_dict({"x": ["a", None], "l": [[[1], [1, 2]], [[1], []]]})
    with pytest.raises(
        DatasetError, match=r"column 'l' .*Lists of lists.*, or leave the column out: `dataset\.remove_columns\('l'\)`\."
    ):
        list(Dataset.from_huggingface(made))
    texts = made.remove_columns("l")
    with pytest.raises(ElementError) as caught:
        list(Dataset.from_huggingface(texts))
    assert str(caught.value).endswith(
        "Give a value to use instead: `dataset.map(lambda row: {'x': '' if row['x'] is None else row['x']})`, or leave such rows "
        "out: `dataset.filter(lambda row: row['x'] is not None)`."
    )
    filled = texts.map(lambda row: {"x": "" if row["x"] is None else row["x"]})
    assert list(Dataset.from_huggingface(filled)) == [{"x": "a"}, {"x": ""}]
    assert list(Dataset.from_huggingface(texts.filter(lambda row: row["x"] is not None))) == [{"x": "a"}]
    with pytest.raises(DatasetError, match=r"there is no column to read\. Select at least one: `dataset\.select_columns\(names\)`"):
        _ = Dataset.from_huggingface(made.select_columns([])).element_spec


def test_what_is_passed_to_a_strategy():
    batches = table().remove_columns(["l", "s"]).batch(4)
    topology = Topology(1, 0, 2)

    def place(rows, sizes):
        return [rows[: sizes[0]].tolist(), rows[sizes[0] :].tolist()]

    assert [step["x"] for step in DistributedDataset(batches, topology, place)] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]
    stream = table().remove_columns(["l", "s"]).to_iterable_dataset().batch(4)
    assert [step["x"] for step in DistributedDataset(stream, topology, place)][2] == [[8], [9]]
    with pytest.raises(
        DatasetError, match=r"component \['l'\] of the dataset is a scalar|is a scalar, which 2 replicas cannot share"
    ):
        DistributedDataset(table(), topology, place)
    rows = Dataset.from_huggingface(table()).batch(5)
    assert rows.explain(num_workers=2).policy is AutoShardPolicy.DATA


def test_workers_share_the_shards_of_a_stream():
    node = Dataset.from_huggingface(KINDS["stream"]().select_columns(["x"])).batch(2).node
    shares = [Dataset(autoshard(node, 3, i, AutoShardPolicy.FILE)[0]).unbatch() for i in range(3)]
    assert sorted(sum(map(xs, shares), [])) == list(range(10))
    with pytest.raises(DatasetError, match="FILE shares the files of a dataset among the 4 workers"):
        autoshard(node, 4, 0, AutoShardPolicy.FILE)


def test_refused():
    with pytest.raises(
        ArgumentTypeError, match=r"takes a Dataset or IterableDataset.*Received: DatasetDict. Choose a split.*\"train\""
    ):
        Dataset.from_huggingface(datasets.DatasetDict({"train": table()}))
    with pytest.raises(ArgumentTypeError, match="Received: int"):
        Dataset.from_huggingface(3)
    missing = datasets.Dataset.from_dict({"x": [1, None]})
    with pytest.raises(
        ElementError, match=r"Hugging Face Dataset: column 'x' has no value \(null\) in row 1 of the dataset, from row 0"
    ):
        list(Dataset.from_huggingface(missing))
    uneven = table().with_transform(lambda batch: {"x" if batch["x"] != [3] else "y": batch["x"]})
    with pytest.raises(DatasetError, match=r"row 3 has the columns .*'y'.* are expected. Give all rows the same columns"):
        list(Dataset.from_huggingface(uneven))


def test_fit_takes_pairs_of_its_columns():
    made = datasets.Dataset.from_dict({"x": [[float(i), 1.0] for i in range(8)], "y": [float(i) for i in range(8)]})
    with replicant.MirroredStrategy().scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(
        ArgumentTypeError, match=r"A Hugging Face Dataset has rows, not the \(x, y\).*`Dataset.from_huggingface\(dataset\)"
    ):
        model.fit(made, verbose=0)
    pairs = Dataset.from_huggingface(made).padded_batch(4).map(lambda row: (row["x"], row["y"]))
    assert len(model.fit(pairs, epochs=2, verbose=0).history["loss"]) == 2


def test_json_is_its_text_in_tables_and_streams():
    features = datasets.Features({"x": datasets.Json(), "list": datasets.List(datasets.Json()), "more": {"y": datasets.Json()}})
    rows = {"x": [{"a": 1}, [1, None]], "list": [[{"b": 2}], ["c", 3]], "more": [{"y": 1}, {"y": "z"}]}
    made = datasets.Dataset.from_dict(rows, features=features)
    for each in (made, made.to_iterable_dataset()):
        found = list(Dataset.from_huggingface(each))
        assert [json.loads(row["x"]) for row in found] == rows["x"]
        assert [[json.loads(item) for item in row["list"]] for row in found] == rows["list"]
        assert [json.loads(row["more"]["y"]) for row in found] == [1, "z"]
