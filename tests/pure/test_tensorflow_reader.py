"""What is in TensorFlow's checkpoints, written here byte by byte: values, slices, blocks, orders of bytes, places and parts."""

import math

import ml_dtypes
import numpy as np
import pytest

import replicant
from replicant import errors
from replicant.checkpoint.tensorflow import open_checkpoint

from . import _tensorflow_files as tf

ORDER = [f"{i:03d}" for i in range(300)]
VALUES = {
    "a/float": np.array([[1.5, -2.0], [0.0, 1e30]], np.float32),
    "a/scalar": np.array(7, np.int64),
    "bfloat": np.array([1.0, -3.5], ml_dtypes.bfloat16),
    "bool": np.array([True, False, True]),
    "complex": np.array([1 + 2j, -3j], np.complex64),
    "complex128": np.array([[1 - 2j]], np.complex128),
    "empty": np.empty((2, 0, 3), np.float32),
    "half": np.array(0.5, np.float16),
    "strings": np.array([[b"one", b""], [b"\xff\x00", b"x" * 200]], object),
    "uint8": np.arange(10, dtype=np.uint8),
}


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.reshape(-1).tolist() == expected.reshape(-1).tolist()


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("shards", [1, 3])
def test_values_of_all_kinds(tmp_path, big_endian, shards):
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt-1", VALUES, shards=shards, big_endian=big_endian))
    assert bundle.keys() == list(VALUES)
    for key, value in VALUES.items():
        found = bundle.read(key)
        same(found, value)
        assert found.flags.writeable


TABLES = {
    "one block": {},
    "keys in full": {"interval": 1},
    "many blocks": {"per_block": 7},
    "a block for each": {"per_block": 1},
    "keys that share all they can": {"interval": 10_000},
}


@pytest.mark.parametrize("how", TABLES.values(), ids=TABLES)
def test_tables(tmp_path, how):
    values = {f"layer/{name}/kernel": np.array(int(name)) for name in ORDER}
    path = tf.write_bundle(tmp_path / "ckpt", values, **how)
    assert replicant.list_variables(path) == [(name, ()) for name in values]
    assert list(map(replicant.load_checkpoint(path).get_tensor, values)) == list(range(300))


def test_snappy(tmp_path):
    cramjam = pytest.importorskip("cramjam")
    values = {f"layer/{name}/kernel": np.array(int(name)) for name in ORDER}
    path = tf.write_bundle(tmp_path / "ckpt", values, per_block=50, compress=lambda data: bytes(cramjam.snappy.compress_raw(data)))
    assert list(map(replicant.load_checkpoint(path).get_tensor, values)) == list(range(300))


def test_snappy_without_cramjam(tmp_path, monkeypatch):
    path = tf.write_bundle(tmp_path / "ckpt", VALUES, compress=lambda data: tf.varint(len(data)) + data)
    monkeypatch.setitem(__import__("sys").modules, "cramjam", None)
    message = r"ckpt\.index has blocks that Snappy has compressed\. .* Run: pip install 'replicant-jax\[snappy\]'\."
    with pytest.raises(errors.ConfigurationError, match=message):
        replicant.load_checkpoint(path)


WHOLE = np.arange(60, dtype=np.float64).reshape(6, 10)
CUTS = {
    "rows": [((0, 2), (0, None)), ((2, 3), (0, None)), ((5, 1), (0, None))],
    "columns": [((0, None), (0, 4)), ((0, None), (4, 6))],
    "a grid": [((a, 3), (b, 5)) for a in (0, 3) for b in (0, 5)],
    "no grid": [((0, 2), (0, None)), ((2, 4), (0, 3)), ((2, 4), (3, 7))],
    "with an empty one": [((0, 0), (0, None)), ((0, 6), (0, 10))],
}
PARTS = [
    (slice(None), slice(None)),
    (slice(1, 5), slice(2, 7)),
    (slice(0, 2), slice(0, 10)),
    (slice(3, 3), slice(None)),
    (slice(5, 6), slice(9, 10)),
]


def index_of(own):
    return tuple(slice(start, None if length is None else start + length) for start, length in own)


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_slices(tmp_path, cuts, big_endian):
    values = {"whole": WHOLE, "cut": (WHOLE.shape, WHOLE.dtype, [(own, WHOLE[index_of(own)]) for own in cuts])}
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", values, shards=2, big_endian=big_endian))
    assert bundle.keys() == ["cut", "whole"]
    same(bundle.read("cut"), WHOLE)
    for key in ("whole", "cut"):
        for part in PARTS:
            same(bundle.read_part(key, part), WHOLE[part])
        for part, found in zip(PARTS, bundle.read_parts(key, PARTS), strict=True):
            same(found, WHOLE[part])


def test_a_part_needs_only_its_slices(tmp_path):
    cuts = CUTS["rows"]
    values = {"cut": (WHOLE.shape, WHOLE.dtype, [(own, WHOLE[index_of(own)]) for own in cuts])}
    path = tf.write_bundle(tmp_path / "ckpt", values, shards=3)
    (tmp_path / "ckpt.data-00002-of-00003").unlink()
    bundle = open_checkpoint(path)
    same(bundle.read_part("cut", (slice(0, 5), slice(0, 10))), WHOLE[:5])
    with pytest.raises(errors.DamagedCheckpointError, match=r"ckpt\.data-00002-of-00003: the bytes of 'cut' could not be read"):
        bundle.read("cut")


def test_a_tensor_has_memory_of_its_own(tmp_path):
    array = np.arange(100, dtype=np.float64)
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", {"x": array}))
    first, second = bundle.read("x"), bundle.read("x")
    first += 1
    assert np.array_equal(second, array)
    assert np.array_equal(first, array + 1)
    assert (tmp_path / "ckpt.data-00000-of-00001").read_bytes() == array.tobytes()


def test_parts_of_large_arrays(tmp_path):
    """Rows larger and smaller than the pieces that are read at a time."""
    for array in (
        np.arange(3 << 18, dtype=np.float32).reshape(3, 1 << 18),
        np.arange(1 << 19, dtype=np.float32).reshape(1 << 10, 512),
    ):
        bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", {"x": array}))
        rows, columns = array.shape
        for part in [(slice(1, 2), slice(5, columns - 3)), (slice(rows - 1, rows), slice(0, 1)), (slice(0, rows), slice(7, 9))]:
            same(bundle.read_part("x", part), array[part])


def test_strings_in_slices(tmp_path):
    words = np.array([b"a", b"bc", b"", b"def"], object)
    values = {"words": ((4,), object, [(((0, 1),), words[:1]), (((1, 3),), words[1:])])}
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", values))
    same(bundle.read("words"), words)
    same(bundle.read_part("words", (slice(1, 2),)), words[1:2])


NO_PARTS = [
    ((slice(0, 7), slice(None)), "shape is (6, 10)"),
    ((slice(0, 6),), "Pass a tuple of one slice for each axis"),
    ((slice(0, 6, 2), slice(None)), "with step 1"),
    ((0, slice(None)), "(0, slice(None, None, None)) is not part of 'whole'"),
    ((slice(-1, 6), slice(None)), "within it"),
]


@pytest.mark.parametrize(("part", "message"), NO_PARTS)
def test_what_is_no_part(tmp_path, part, message):
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", {"whole": WHOLE}))
    with pytest.raises(errors.ArgumentError, match=r"read_part: .*") as raised:
        bundle.read_part("whole", part)
    assert message in str(raised.value)


def test_the_reader_has_tensorflows_methods(tmp_path):
    path = tf.write_bundle(tmp_path / "ckpt", VALUES)
    reader = replicant.load_checkpoint(path)
    assert reader.get_variable_to_shape_map() == {key: list(value.shape) for key, value in VALUES.items()}
    assert reader.get_variable_to_dtype_map() == {key: value.dtype for key, value in VALUES.items()}
    assert reader.has_tensor("bool")
    assert not reader.has_tensor("b")
    assert (reader.get_tensor("a/scalar"), type(reader.get_tensor("a/scalar"))) == (7, np.int64)
    assert reader.get_tensor("strings")[1, 0] == b"\xff\x00"
    assert replicant.load_variable(path, "half") == np.float16(0.5)
    message = r"ckpt\.index has no tensor 'b'\. It has: 'a/float', 'a/scalar', 'bfloat', .*'uint8'\."
    with pytest.raises(errors.CheckpointError, match=message):
        reader.get_tensor("b")


def test_a_string_alone_is_bytes(tmp_path):
    path = tf.write_bundle(tmp_path / "ckpt", {"name": np.array(b"model", object)})
    assert replicant.load_variable(path, "name") == b"model"


def test_the_reader_reads_replicants_own(tmp_path):
    path = replicant.Checkpoint(weights=replicant.Variable([1.0, 2.0]), step=7, rate=0.5, done=True).save(tmp_path / "ckpt")
    for place in (path, tmp_path):
        reader = replicant.load_checkpoint(place)
        assert reader.get_variable_to_shape_map() == {"done": [], "rate": [], "step": [], "weights": [2]}
        kinds = {"done": "bool", "rate": "float64", "step": "int64", "weights": "float32"}
        assert {key: dtype.name for key, dtype in reader.get_variable_to_dtype_map().items()} == kinds
        assert [reader.get_tensor(key) for key in ("done", "rate", "step")] == [True, 0.5, 7]
    with pytest.raises(errors.CheckpointError, match=r"has no value 'bias'\. It has: done, rate, step, weights\."):
        reader.get_tensor("bias")


def test_in_a_folder_with_both_replicants_own_is_the_newest(tmp_path):
    tf.write_bundle(tmp_path / "ckpt-9", {"x": np.array(9)})
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-9"\n')
    assert replicant.list_variables(tmp_path) == [("x", ())]
    replicant.Checkpoint(y=1).save(tmp_path / "model")
    assert replicant.list_variables(tmp_path) == [("y", ())]
    assert replicant.list_variables(tmp_path / "ckpt-9") == [("x", ())]


def test_a_name_that_is_none(tmp_path):
    tf.write_bundle(tmp_path / "ckpt-1", {"x": np.array(9)})
    for place in (tmp_path, tmp_path / "ckpt-2"):
        with pytest.raises(
            errors.CheckpointError, match=rf"There is no checkpoint at {place}\. There are the prefixes: .*ckpt-1\."
        ):
            replicant.load_checkpoint(place)
    with pytest.raises(errors.CheckpointError, match=r"ckpt-1\.index is one file of a checkpoint\. Pass the prefix .*ckpt-1'\."):
        replicant.load_checkpoint(tmp_path / "ckpt-1.index")
    with pytest.raises(errors.CheckpointError, match=r"00001 is one file of a checkpoint\. Pass the prefix .*ckpt-1'\."):
        replicant.load_checkpoint(tmp_path / "ckpt-1.data-00000-of-00001")
    with pytest.raises(errors.CheckpointError, match=r"There is no readable checkpoint at .*elsewhere/a"):
        replicant.load_checkpoint(tmp_path / "elsewhere" / "a")


def test_variants_are_left_out(tmp_path):
    def add(records):
        records[b"iterator"] = tf.entry(21, (1,), 3)
        records[b"table"] = tf.entry(20, (), 0)
        records[b"new"] = tf.entry(77, (), 0)

    path = tf.write_bundle(tmp_path / "ckpt", {"x": np.array(9)}, changes=add)
    assert replicant.list_variables(path) == [("new", ()), ("table", ()), ("x", ())]
    assert not replicant.load_checkpoint(path).has_tensor("iterator")
    for key, message in {
        "iterator": r"'iterator' is a variant, such as the position of an iterator, which only TensorFlow can use\.",
        "table": r"'table' is a handle of a resource, which only TensorFlow can use\.",
        "new": r"'new' has the dtype number 77, but the dtypes that are known here have the numbers 1 to 32\.",
    }.items():
        with pytest.raises(errors.CheckpointError, match=rf"ckpt\.index: {message}"):
            replicant.load_variable(path, key)


def test_names_of_any_bytes(tmp_path):
    cuts = [((0, 1),), ((1, 200),), ((201, 9),)]
    names = ["a\x01b", "ü/ö", "a" * 300, "\udcff"]
    whole = np.arange(210, dtype=np.float32)
    values = {name: ((210,), np.float32, [(own, whole[index_of(own)]) for own in cuts]) for name in names}
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", values))
    assert sorted(bundle.keys()) == sorted(names)
    for name in names:
        same(bundle.read(name), whole)


def test_sizes(tmp_path):
    """A table of many tensors, and one with axes of size 1 and 0."""
    shapes = [(), (1,), (1, 1, 1), (0,), (3, 0), (2, 3, 4)]
    values = {f"x{i}": np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes) for i, sizes in enumerate(shapes)}
    bundle = open_checkpoint(tf.write_bundle(tmp_path / "ckpt", values))
    for key, value in values.items():
        same(bundle.read(key), value)
        same(bundle.read_part(key, tuple(slice(None) for _ in value.shape)), value)
