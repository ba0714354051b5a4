"""Folders of TFDS: what it reads in those that it has written, in its order, from every position, and shared among workers."""

import importlib.util
import itertools
import json
import os
import shutil
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replicant.data import (
    AutoShardPolicy,
    Dataset,
    DatasetSpec,
    DistributedDataset,
    Options,
    SkipDecoding,
    TensorSpec,
    tfds_folder,
    tfds_info,
)
from replicant.errors import ArgumentError, DatasetError, ElementError
from replicant.replicas._topology import Topology

from ._division import autoshard
from ._tfds_folders import RECORDED, TEXT, differences, feature, ns, numbers, sequence, tensor, write

TRUTH = json.loads((RECORDED / "truth.json").read_text())
FOLDERS = [name for name, truth in TRUTH.items() if isinstance(truth, dict)]
ALL_RECORDED = Path(os.environ.get("REPLICANT_TEST_DATA", "/nowhere")) / "open" / "tfds"


def folder_of(name):
    return RECORDED / name / "1.0.0"


def assert_as_recorded(folder, truth, **settings):
    for split, count in truth["splits"].items():
        dataset = tfds_folder(folder, split, **settings)
        assert len(dataset) == count
        if isinstance(truth.get(f"examples {split}"), list):
            picture = "sha256" if settings.get("dct_method") == "INTEGER_FAST" else "sha256, INTEGER_ACCURATE"
            assert differences(list(dataset), truth[f"examples {split}"], picture=picture) == []
    for key, order in truth.items():
        split = key.removeprefix("order ")
        if split == key:
            continue
        whole = split == "with cycle length 1"
        dataset = tfds_folder(folder, "train" if whole else split, read_order="files" if whole else "tfds")
        assert [int(element["scalar"]) // 10**10 for element in dataset] == order, key


@pytest.mark.parametrize("name", FOLDERS)
def test_what_tfds_reads(name):
    assert_as_recorded(folder_of(name), TRUTH[name], as_supervised=name == "supervised")


@pytest.mark.parametrize("name", ["kinds", "more_kinds"])
def test_the_pixels_of_tfds(name):
    pytest.importorskip("simplejpeg")
    assert_as_recorded(folder_of(name), TRUTH[name], dct_method="INTEGER_FAST")


@pytest.mark.long
@pytest.mark.skipif(not ALL_RECORDED.is_dir(), reason="REPLICANT_TEST_DATA names no folder with recorded datasets in open/tfds/")
def test_all_that_was_recorded():
    truths = json.loads((ALL_RECORDED / "truth.json").read_text())
    formats = {"tfrecord"} | ({"array_record"} if importlib.util.find_spec("array_record") else set())
    chosen = {name: truth for name, truth in truths.items() if isinstance(truth, dict) and truth.get("format") in formats}
    assert len(chosen) > 10
    for name, truth in chosen.items():
        if name == "kinds":  # JPEG pictures that were decoded by the fast transform
            truth["examples train"] = TRUTH[name]["examples train"]
        assert_as_recorded(ALL_RECORDED / truth["folder"], truth)


# Specs and what the folder says of itself


def test_the_spec_needs_no_examples(tmp_path):
    shutil.copytree(folder_of("kinds"), tmp_path / "kinds")
    file_of_kinds = next((tmp_path / "kinds").glob("*tfrecord*"))
    file_of_kinds.unlink()
    dataset = tfds_folder(tmp_path / "kinds", "train[:5]")
    spec = dataset.element_spec
    assert spec["image"] == TensorSpec((None, None, 3), np.uint8)
    assert spec["grey16"] == TensorSpec((4, 4, 1), np.uint16)
    assert spec["nested"]["x"] == {"y": TensorSpec((), np.int64), "z": TensorSpec((), object)}
    assert spec["seq_seq"] == TensorSpec((None, None), np.int32)
    assert spec["seq_images"] == TensorSpec((None, 2, 2, 3), np.uint8)
    assert spec["flag"] == TensorSpec((), np.bool_)
    assert spec["translation"] == {"de": TensorSpec((), object), "en": TensorSpec((), object)}
    assert dataset.batch(2).element_spec["f64"] == TensorSpec((None,), np.float64)
    assert len(dataset) == 5
    assert len(dataset.batch(2)) == 3
    with pytest.raises(DatasetError, match=r"kinds-train\.tfrecord-00000-of-00001' is missing, which should have 7 examples"):
        next(iter(dataset))


def test_what_a_folder_says_of_itself():
    info = tfds_info(RECORDED / "basic_tfrecord")
    assert (info.name, info.version, info.file_format, info.in_order) == ("basic_tfrecord", "1.0.0", "tfrecord", False)
    assert {name: (its.num_examples, its.num_shards) for name, its in info.splits.items()} == {"train": (37, 4), "test": (9, 4)}
    part = info.splits["train[50%:]+test[:1]"]
    assert (part.num_examples, part.num_shards, part.lengths) == (20, 3, (10, 9, 1))
    assert info.supervised_keys == ("image", "label")
    label = info.features["label"]
    names = (folder_of("basic_tfrecord") / "label.labels.txt").read_text().split()
    assert (label.num_classes, label.names, label.shape, label.dtype) == (3, names, (), np.int64)
    assert [label.int2str(1), label.str2int(names[2])] == [names[1], 2]
    assert info.features["image"].shape == (None, None, 3)
    numbered = tfds_info(RECORDED / "kinds").features["label_n"]
    assert (numbered.num_classes, numbered.names) == (4, ["0", "1", "2", "3"])
    with pytest.raises(ArgumentError, match=r"int2str: 'label' has the classes 0 to 2. Received: 3"):
        label.int2str(3)
    with pytest.raises(ArgumentError, match=r"str2int: 'label' has no class 'x'. Its classes are"):
        label.str2int("x")


def test_names_of_classes_that_do_not_fit(tmp_path):
    label = feature("ClassLabel", classLabel={"numClasses": "3"})
    folder = write(
        tmp_path,
        [[{"objects/kind": [1]}]],
        {"objects": sequence(feature("FeaturesDict", featuresDict={"features": {"kind": label}}))},
    )
    kind = tfds_info(folder).features["objects"]["kind"]
    (folder / "objects-kind.labels.txt").write_text("a\nb\n")
    with pytest.raises(DatasetError, match=r"objects-kind.labels.txt' has 2 names, but features.json says .* has 3 classes"):
        _ = kind.names
    (folder / "objects-kind.labels.txt").write_bytes(b"a\xff\n")
    with pytest.raises(DatasetError, match=r"objects-kind.labels.txt' is not UTF-8: .* at byte 1"):
        _ = kind.names
    (folder / "objects-kind.labels.txt").unlink()
    (folder / "objects-kind.labels.txt").mkdir()
    with pytest.raises(DatasetError, match=r"tfds_info: cannot open .*objects-kind.labels.txt'"):
        _ = kind.names


def test_the_newest_version_is_read(tmp_path):
    for version, size in (("1.9.0", 1), ("1.10.0", 2), ("1.2.3", 3), ("2.0.0-rc", 4)):
        numbers(tmp_path / version, size)
    (tmp_path / "3.0.0").mkdir()
    assert len(tfds_folder(tmp_path, "train")) == 2


def test_several_splits_at_once():
    folder = folder_of("basic_tfrecord")
    everything = tfds_folder(folder)
    assert {name: len(dataset) for name, dataset in everything.items()} == {"train": 37, "test": 9}
    assert [len(dataset) for dataset in tfds_folder(folder, ["train[:5]", "test"])] == [5, 9]
    assert [len(dataset) for dataset in tfds_folder(folder, ("test",))] == [9]
    assert len(tfds_folder(folder, {"a": ["test"]})["a"][0]) == 9


def test_inputs_and_labels():
    folder = folder_of("basic_tfrecord")
    dataset = tfds_folder(folder, "train", as_supervised=True)
    assert dataset.element_spec == (TensorSpec((None, None, 3), np.uint8), TensorSpec((), np.int64))
    for (image, label), whole in zip(dataset, tfds_folder(folder, "train"), strict=True):
        assert np.array_equal(image, whole["image"])
        assert label == whole["label"]
    with pytest.raises(ArgumentError, match="as_supervised=True, but 'many_shards' does not name inputs and labels"):
        tfds_folder(folder_of("many_shards"), "train", as_supervised=True)


def test_what_is_not_decoded():
    decoders = {"image": SkipDecoding(), "two_unknown": SkipDecoding(), "seq_images": SkipDecoding(), "nested": SkipDecoding()}
    dataset = tfds_folder(folder_of("kinds"), "train", decoders=decoders)
    spec = dataset.element_spec
    assert (spec["image"], spec["seq_images"]) == (TensorSpec((), object), TensorSpec((None,), object))
    assert spec["two_unknown"] == {"shape": TensorSpec((2,), np.int32), "value": TensorSpec((), object)}
    element = next(iter(dataset))
    assert element["image"].startswith(b"\x89PNG")
    assert [each[:4] for each in element["seq_images"]] == [b"\x89PNG"]
    assert element["two_unknown"]["shape"].tolist() == [1, 2]
    assert element["nested"]["x"]["y"] == 1
    steps = {"dataset": {"act": SkipDecoding()}}
    assert next(iter(tfds_folder(folder_of("kind_dataset"), "train", decoders=steps)))["dataset"].element_spec["act"].shape == (2,)


def test_a_dataset_in_an_example():
    dataset = tfds_folder(folder_of("kind_dataset"), "train")
    inner = {"act": TensorSpec((2,), np.float32), "step": TensorSpec((), np.int64)}
    assert dataset.element_spec == {"dataset": DatasetSpec(inner), "scalar": TensorSpec((), np.int64)}
    element = next(iter(dataset))
    assert element["dataset"].element_spec == inner
    steps = list(element["dataset"].batch(8))
    assert len(steps) == 1
    assert steps[0]["step"].tolist() == list(range(len(element["dataset"])))
    every = [int(step["step"]) for step in dataset.flat_map(lambda element: element["dataset"])]
    assert every == [step for element in dataset for step in range(len(element["dataset"]))]


def test_the_order_of_long_files_and_of_files(tmp_path):
    folder = numbers(tmp_path / "a", 40, 20)
    in_turn = [*range(16), *range(40, 56), *range(16, 32), *range(56, 60), *range(32, 40)]
    assert ns(tfds_folder(folder, "train")) == in_turn
    assert ns(tfds_folder(folder, "train", read_order="files")) == list(range(60))
    kept = numbers(tmp_path / "b", 40, 20, disableShuffling=True)
    assert ns(tfds_folder(kept, "train")) == list(range(60))
    assert ns(tfds_folder(kept, "train[30:50]")) == list(range(30, 50))


def test_files_in_another_order_in_each_pass(tmp_path):
    folder = numbers(tmp_path, *[2] * 12)
    dataset = tfds_folder(folder, "train", shuffle_files=True, shuffle_seed=3)
    passes = [ns(dataset), ns(dataset)]
    assert passes[0] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(24))
    assert [a // 2 for a in passes[0][::2]] == [a // 2 for a in passes[0][1::2]]  # pairs stay together
    assert ns(tfds_folder(folder, "train", shuffle_files=True, shuffle_seed=3)) == passes[0]


def test_older_features_json(tmp_path):
    """As TFDS wrote it before version 4.5: a type and its content, with sizes in lists."""
    new = write(
        tmp_path / "new",
        [[{"a": [1, 2], "i/x": [1.5], "i/n": [2], "t": "é", "l": 1, "s": [7, 8]}]],
        {
            "a": tensor(shape=(2,)),
            "i": feature("FeaturesDict", featuresDict={"features": {"x": tensor("float32"), "n": tensor("int32")}}),
            "t": TEXT,
            "l": feature("ClassLabel", classLabel={"numClasses": "2"}),
            "s": sequence(tensor("int64")),
        },
    )
    shutil.copytree(new, tmp_path / "old")

    def old(name, content, **more):
        return {"type": f"tensorflow_datasets.core.features.{name}", "content": content, **more}

    features = {
        "a": old("feature.Tensor", {"shape": [2], "dtype": "int64", "encoding": "none"}),
        "i": old(
            "features_dict.FeaturesDict",
            {
                "x": old("tensor_feature.Tensor", {"shape": [], "dtype": "float32"}),
                "n": old("tensor_feature.Tensor", {"shape": [], "dtype": "int32"}),
            },
        ),
        "t": old("text_feature.Text", {}),
        "l": old("class_label_feature.ClassLabel", {"num_classes": 2}),
        "s": old(
            "sequence_feature.Sequence",
            {
                "feature": old(
                    "tensor_feature.Tensor", {"shape": {}, "dtype": "int64"}, proto_cls="tensorflow_datasets.TensorFeature"
                ),
                "length": None,
            },
        ),
    }
    (tmp_path / "old" / "features.json").write_text(json.dumps(old("features_dict.FeaturesDict", features)))
    a, b = (list(tfds_folder(tmp_path / name, "train")) for name in ("new", "old"))
    assert repr(a) == repr(b)
    assert a[0]["s"].tolist() == [7, 8]


def test_lists_in_lists_are_padded_by_the_user(tmp_path):
    lists = {"r/ragged_flat_values": [1, 2, 3], "r/ragged_row_lengths_0": [2, 1]}
    dataset = tfds_folder(
        write(tmp_path, [[{**lists, "n": i} for i in range(2)]], {"r": sequence(sequence(tensor())), "n": tensor()}), "train"
    )
    assert next(iter(dataset))["r"] == [[1, 2], [3]]
    for method, what in (("batch", "component"), ("padded_batch", "padded_batch: component")):
        with pytest.raises(ElementError, match=rf"{what} \['r'\] is lists in lists, which may have different lengths .*in `map`"):
            list(getattr(dataset, method)(2))
    with pytest.raises(ElementError, match="A component that is to be written to a file is lists in lists"):
        dataset.save(tmp_path / "saved")
    padded = dataset.map(lambda element: np.array([row + [0] * (2 - len(row)) for row in element["r"]]))
    assert next(iter(padded.batch(2))).tolist() == [[[1, 2], [3, 0]]] * 2


def test_a_folder_on_a_store(tmp_path):
    store = fsspec.filesystem("memory")
    numbers(tmp_path / "a", 3, 2)
    store.put(f"{tmp_path / 'a'}/", "/tfds-made/", recursive=True)
    iterator = iter(tfds_folder("memory://tfds-made", "train[1:]"))
    next(iterator)
    again = iter(tfds_folder("memory://tfds-made", "train[1:]"))
    again.restore(json.loads(json.dumps(iterator.state())))
    assert ns(again) == [2, 3, 4]
    store.rm("/tfds-made/made-train.tfrecord-00001-of-00002")
    with pytest.raises(
        DatasetError, match=r"'memory://tfds-made/made-train.tfrecord-00001-of-00002' is missing, which should have 2"
    ):
        list(tfds_folder("memory://tfds-made", "train"))


# Positions and shares


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: tfds_folder(folder, "train[3:-2]"),
        lambda folder: tfds_folder(folder, "train+train[:20]", shuffle_files=True, shuffle_seed=1).repeat(2),
        lambda folder: tfds_folder(folder, "train", read_order="files").shuffle(7, seed=1),
    ],
    ids=["part", "files in another order", "shuffled"],
)
def test_every_position(tmp_path, make):
    folder = numbers(tmp_path, 20, 0, 3, 18)
    whole = ns(make(folder))
    for cut in range(0, len(whole) + 1, 3):
        iterator = iter(make(folder))
        assert ns(itertools.islice(iterator, cut)) == whole[:cut]
        state = json.loads(json.dumps(iterator.state()))
        again = iter(make(folder))
        again.restore(state)
        assert json.loads(json.dumps(again.state())) == state
        assert ns(again) == whole[cut:], cut


def test_a_position_in_a_long_file(tmp_path):
    """Records are read in pieces, whose ends depend on where reading began."""
    folder = write(tmp_path, [[{"n": i, "t": "x" * (i % 5000)} for i in range(900)]], {"n": tensor(), "t": TEXT})
    for cut in (1, 255, 256, 257, 700):
        iterator = iter(tfds_folder(folder, "train"))
        assert len(list(itertools.islice(iterator, cut))) == cut
        again = iter(tfds_folder(folder, "train"))
        again.restore(iterator.state())
        assert ns(again) == list(range(cut, 900))


def test_the_position_of_another_split(tmp_path):
    folder = numbers(tmp_path, 4, 4)
    iterator = iter(tfds_folder(folder, "train[:6]"))
    next(iterator)
    with pytest.raises(DatasetError, match="This position belongs to another pipeline"):
        iter(tfds_folder(folder, "train[:7]")).restore(iterator.state())


def shares(dataset, num_workers, policy):
    """What each worker reads."""
    if policy is AutoShardPolicy.FILE:
        return [ns(Dataset(autoshard(dataset.node, num_workers, worker, policy)[0])) for worker in range(num_workers)]
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    batches = dataset.batch(num_workers).with_options(options)
    workers = (DistributedDataset(batches, Topology(num_workers, i, 1), lambda rows, sizes: rows) for i in range(num_workers))
    return [[n for batch in each for n in np.ravel(batch["n"]).tolist()] for each in workers]


def test_shares_by_files_and_by_examples(tmp_path):
    folder = numbers(tmp_path, 6, 6, 6)
    dataset = tfds_folder(folder, "train[2:]")
    by_file = shares(dataset, 2, AutoShardPolicy.FILE)
    assert [sorted(share) for share in by_file] == [[2, 3, 4, 5, *range(12, 18)], list(range(6, 12))]
    by_example = shares(dataset, 2, AutoShardPolicy.DATA)
    assert [len(share) for share in by_example] == [8, 8]
    assert sorted(by_example[0] + by_example[1]) == list(range(2, 18))
    plan = dataset.batch(2).explain(2)
    assert plan.policy is AutoShardPolicy.FILE
    assert [[Path(name).name for name in worker.files] for worker in plan.workers] == [
        ["made-train.tfrecord-00000-of-00003", "made-train.tfrecord-00002-of-00003"],
        ["made-train.tfrecord-00001-of-00003"],
    ]
    own, _ = autoshard(dataset.node, 2, 1, AutoShardPolicy.FILE)
    assert Dataset(own).cardinality() == 6


def in_turn(slices):
    """The order of TFDS, in plain lists: 16 files at a time, 16 examples of each in turn."""
    queue, slots, found, turn = [list(each) for each in slices], [None] * 16, [], 0
    while queue or any(slot is not None for slot in slots):
        if slots[turn] is None and queue:
            slots[turn] = queue.pop(0)
        if slots[turn] is not None:
            found += slots[turn][:16]
            slots[turn] = slots[turn][16:] if len(slots[turn]) >= 16 else None  # one that has ended is filled in its next turn
        turn = (turn + 1) % 16
    return found


@st.composite
def readings(draw):
    """The lengths of files, and which parts of all examples to read."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=20).filter(any))
    ends = st.integers(0, sum(sizes))
    parts = draw(st.lists(st.tuples(ends, ends).filter(lambda part: part[0] < part[1]), min_size=1, max_size=3))
    return sizes, parts


TRANSFORMS = [
    lambda dataset: dataset,
    lambda dataset: dataset.shuffle(9, seed=1),
    lambda dataset: dataset.repeat(2).skip(3),
    lambda dataset: dataset.map(lambda element: {"n": element["n"] + 0}, num_parallel_calls=2).cache(),
    lambda dataset: dataset.shard(2, 1).prefetch(3),
]


@given(readings(), st.sampled_from(TRANSFORMS), st.booleans(), st.integers(1, 5), st.integers(0, 30), st.integers(1, 3))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@pytest.mark.long
def test_any_part_from_any_position(  # noqa: PLR0917 - what is drawn
    tmp_path, reading, transform, shuffled, size, cut, num_workers
):
    sizes, parts = reading
    folder = numbers(tmp_path / str(time.monotonic_ns()), *sizes)
    split = "+".join(f"train[{begin}:{end}]" for begin, end in parts)
    files = list(itertools.pairwise(np.cumsum([0, *sizes]).tolist()))
    slices = [range(max(a, begin), min(b, end)) for a, b in parts for begin, end in files if max(a, begin) < min(b, end)]
    plain = tfds_folder(folder, split)
    assert ns(plain) == in_turn(slices)
    assert ns(tfds_folder(folder, split, read_order="files")) == list(itertools.chain(*slices))

    def make():
        return transform(tfds_folder(folder, split, shuffle_files=shuffled, shuffle_seed=5 if shuffled else None)).batch(size)

    iterator = iter(make())
    done = [batch["n"].tolist() for batch in itertools.islice(iterator, cut)]
    state = json.loads(json.dumps(iterator.state()))
    again = iter(make())
    again.restore(state)
    rest = [batch["n"].tolist() for batch in again]
    assert done + rest == [batch["n"].tolist() for batch in make()]
    for policy in (AutoShardPolicy.DATA, *([AutoShardPolicy.FILE] if len(slices) >= num_workers else [])):
        assert sorted(itertools.chain(*shares(plain, num_workers, policy))) == sorted(itertools.chain(*slices))
