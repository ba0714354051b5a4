"""Checkpoints that TensorFlow has written, read bit for bit: some here, and all of those in the folder REPLICANT_TEST_DATA."""

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import replicant
from replicant import errors
from replicant.checkpoint.tensorflow import open_checkpoint

FILES = Path(__file__).parents[1] / "tensorflow_files" / "bundles"
TRUTH = json.loads((FILES / "truth.json").read_text())
RECORDED = Path(os.environ.get("REPLICANT_TEST_DATA", "/nowhere")) / "open"


def digest(array):
    """What the recordings say of a tensor: dtype, shape, and SHA-256 of its bytes, or of the lengths and bytes of its strings."""
    digests = hashlib.sha256()
    if array.dtype == object:
        for text in array.reshape(-1):
            digests.update(len(text).to_bytes(8, "little") + text)
    else:
        digests.update(np.ascontiguousarray(array).tobytes())
    return [array.dtype.name, list(array.shape), digests.hexdigest()]


@pytest.mark.parametrize("prefix", TRUTH)
def test_a_checkpoint_of_tensorflow_is_read_bit_for_bit(prefix):
    with open_checkpoint(FILES / prefix) as bundle:
        expected = TRUTH[prefix]
        assert bundle.keys() == sorted(expected)
        assert {key: digest(bundle.read(key)) for key in bundle.keys()} == expected  # noqa: SIM118
        assert {key: [bundle.dtype(key).name, list(bundle.shape(key))] for key in expected} == {
            key: told[:2] for key, told in expected.items()
        }


def test_values_as_numbers():
    """Not only hashes: some values as they were written."""
    path = FILES / "v1/plain/model.ckpt-3000"
    assert replicant.load_variable(path, "dense/bias").tolist() == [0.9807383418083191, 0.6482177972793579, -1.0119054317474365]
    names = replicant.load_variable(FILES / "dist/ps/words-1", "words/.ATTRIBUTES/VARIABLE_VALUE")
    assert names.tolist() == [b"a", b"bc", b"def", b""]
    table = replicant.load_variable(FILES / "dist/ps/dense-1", "bias/.ATTRIBUTES/VARIABLE_VALUE")
    assert table.tolist() == pytest.approx([-0.3095766305923462, 0.7257522344589233, 1.5490716695785522, 0.63007981, 0.07349323])


def test_a_graph_of_objects():
    graph = open_checkpoint(FILES / "dist/ps/words-1").graph()
    assert [dict(node.children) for node in graph.nodes] == [{"words": 1, "save_counter": 2}, {}, {}]
    assert graph.nodes[1].attributes == (("VARIABLE_VALUE", "ShardedVariable", "words/.ATTRIBUTES/VARIABLE_VALUE"),)
    assert graph.nodes[2].attributes == (("VARIABLE_VALUE", "save_counter", "save_counter/.ATTRIBUTES/VARIABLE_VALUE"),)
    assert open_checkpoint(FILES / "v1/plain/model.ckpt-3000").graph() is None
    assert open_checkpoint(FILES / "v1/format_v1/model.ckpt").graph() is None


# What names which checkpoint.
PLACES = {
    "v1/plain": "v1/plain/model.ckpt-3000",  # named by an absolute path of another machine
    "v1/format_v1": "v1/format_v1/model.ckpt",
    "state/absolute": "state/absolute/ck pt-2",
    "state/relative": "state/relative/ckpt-30",
    "saved/module/sm": "saved/module/sm/variables/variables",
}


@pytest.mark.parametrize("folder", PLACES)
def test_a_folder_stands_for_its_newest_checkpoint(folder):
    bundle = open_checkpoint(FILES / folder)
    assert bundle.path == str(FILES / PLACES[folder])
    assert {key: digest(bundle.read(key)) for key in bundle.keys()} == TRUTH[PLACES[folder]]  # noqa: SIM118


@pytest.mark.parametrize("place", ["v1", "nowhere", "v1/plain/checkpoint", "truth.json", "v1/plain/nothing-1"])
def test_elsewhere_there_is_none(place):
    assert open_checkpoint(FILES / place) is None


def tables(told):
    """All tables of tensors in a truth.json, wherever in it."""
    if isinstance(told, dict) and told and all(isinstance(each, dict) and "dtype" in each for each in told.values()):
        yield told
    elif isinstance(told, dict | list):
        for each in told.values() if isinstance(told, dict) else told:
            yield from tables(each)


def recorded():
    return sorted(
        prefix
        for prefix in [
            *(str(file)[: -len(".index")] for file in RECORDED.rglob("*.index")),
            *map(str, RECORDED.rglob("model.ckpt")),
        ]
        if "damaged" not in Path(prefix).parts
    )


@pytest.mark.long
@pytest.mark.skipif(not RECORDED.is_dir(), reason="REPLICANT_TEST_DATA names no folder with recorded checkpoints in open/")
def test_all_recorded_checkpoints_are_read_bit_for_bit():
    wrong = {}
    for prefix in recorded():
        bundle = open_checkpoint(prefix)
        found = {key: digest(bundle.read(key)) for key in bundle.keys()}  # noqa: SIM118
        bundle.graph()
        truth = next(folder / "truth.json" for folder in Path(prefix).parents if (folder / "truth.json").exists())
        told = [
            {
                key: [each["dtype"].replace("string", "object"), each["shape"], each["sha256"]]
                for key, each in table.items()
                if "sha256" in each
            }
            for table in tables(json.loads(truth.read_text()))
            if set(table) >= set(found)
        ]
        if not any(each.items() <= found.items() and each for each in told):
            wrong[prefix] = found
    assert wrong == {}
    assert len(recorded()) >= 114


@pytest.mark.long
@pytest.mark.skipif(not RECORDED.is_dir(), reason="REPLICANT_TEST_DATA names no folder with recorded checkpoints in open/")
def test_all_recorded_damage_is_an_error_that_names_the_file():
    folder = RECORDED / "damaged"
    told = json.loads((folder / "truth.json").read_text())
    for name in told["tensorflow_says"]:
        if name == "big_endian":  # the header says so of numbers that are not: TensorFlow reads them, too
            assert replicant.load_variable(folder / name, told["key"]).shape == (8,)
            continue
        with pytest.raises(errors.CheckpointError, match=re.escape(f"{folder / name}.")):
            replicant.load_variable(folder / name, told["key"])
