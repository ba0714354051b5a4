"""Damage in graphs of objects and in files of the first Saver: errors that name the file and the tensor."""

import numpy as np
import pytest

from replicant import errors
from replicant.checkpoint.tensorflow import open_checkpoint

from . import _tensorflow_files as tf

KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


def node(*fields):
    return (1, tf.message(*fields))


def child(number, name):
    return (1, tf.message((1, number), (2, name)))


def graph_in(tmp_path, message):
    path = tf.write_bundle(tmp_path / "ckpt", {KEY: np.array(message, object), "x": np.array(1)})
    return open_checkpoint(path).graph()


def test_a_graph(tmp_path):
    slot = (3, tf.message((1, 1), (2, b"m"), (3, 2)))
    value = (2, tf.message((1, b"VARIABLE_VALUE"), (2, b"dense/kernel"), (3, b"x")))
    saver = (4, tf.message((1, b"name"), (2, b"key")))
    graph = graph_in(
        tmp_path, tf.message(node(child(1, b"kernel"), child(3, b"optimizer")), node(value, saver), node(), node(slot))
    )
    assert [each.children for each in graph.nodes] == [{"kernel": 1, "optimizer": 3}, {}, {}, {}]
    assert graph.nodes[1].attributes == (("VARIABLE_VALUE", "dense/kernel", "x"),)
    assert graph.nodes[1].attributes[0].full_name == "dense/kernel"
    assert graph.nodes[3].slots == ((1, "m", 2),)
    assert (graph.nodes[3].slots[0].variable, graph.nodes[3].slots[0].name, graph.nodes[3].slots[0].node) == (1, "m", 2)


GRAPHS = {
    "none": (b"", "its graph of objects is empty"),
    "a child that is not there": (tf.message(node(child(7, b"a"))), "its graph of objects refers to node 7 of 1"),
    "a negative child": (tf.message(node(child(-1, b"a"))), "its graph of objects refers to node -1 of 1"),
    "a slot that is not there": (tf.message(node((3, tf.message((3, 9))))), "its graph of objects refers to node 9 of 1"),
    "a slot of nothing": (tf.message(node((3, tf.message((1, 8))))), "its graph of objects refers to node 8 of 1"),
    "two children": (
        tf.message(node(child(1, b"a"), child(0, b"a")), node()),
        "an object in its graph holds two objects by the name 'a'",
    ),
    "no text": (
        tf.message(node(child(0, b"\xff"))),
        r"the record of '_CHECK\w+GRAPH' cannot be parsed, .* is not UTF-8",
    ),
    "no message": (b"\x0a\x05\x00", "the record of '_CHECKPOINTABLE_OBJECT_GRAPH' cannot be parsed, a field of 5 bytes"),
}


@pytest.mark.parametrize(("message", "told"), GRAPHS.values(), ids=GRAPHS)
def test_a_graph_that_cannot_be_true(tmp_path, message, told):
    with pytest.raises(errors.DamagedCheckpointError, match=rf"ckpt\.index is damaged: {told}"):
        graph_in(tmp_path, message)


@pytest.mark.parametrize("value", [np.array(5), np.array([b"a", b"b"], object)], ids=["a number", "two strings"])
def test_a_graph_that_is_no_string(tmp_path, value):
    path = tf.write_bundle(tmp_path / "ckpt", {KEY: value})
    with pytest.raises(errors.DamagedCheckpointError, match=r"ckpt\.index is damaged: its graph of objects is not a single string"):
        open_checkpoint(path).graph()


WHOLE = ((0, None),)
FLOATS = tf.message((5, np.arange(4, dtype=np.float32).tobytes()))


def saver(tmp_path, meta, *records):
    path = tmp_path / "model.ckpt"
    path.write_bytes(tf.table(sorted([(b"", meta), *records])))
    return open_checkpoint(path)


def of_x(tensor):
    return [tf.saver_slice("x", WHOLE, tensor)]


def other(record):
    """A record in the place of that of x."""
    return [(tf.saver_slice("x", WHOLE, FLOATS)[0], record)]


OF_X = tf.saver_meta(("x", 1, (4,), [WHOLE]))
SAVER = {
    "another number of values": (
        OF_X,
        [tf.saver_slice("x", WHOLE, FLOATS[:1] + b"\x08" + FLOATS[2:10])],
        "it has 2 values in place of 4",
    ),
    "no slice": (OF_X, [], r"the slice \(\(0, -1\),\) of 'x' is missing"),
    "another tensor's": (OF_X, other(tf.saver_slice("y", WHOLE, FLOATS)[1]), "it is about another tensor or slice"),
    "another slice's": (OF_X, other(tf.saver_slice("x", ((0, 4),), FLOATS)[1]), "it is about another tensor or slice"),
    "no data": (OF_X, other(b""), "it is about another tensor or slice"),
    "no tensor": (
        OF_X,
        other(tf.message((2, tf.message((1, b"x"), (2, tf.extents(*WHOLE)))))),
        "it has 0 values in place of 4",
    ),
    "no message": (OF_X, other(b"\xff"), "a number has no end"),
    "a hole": (
        tf.saver_meta(("x", 1, (4,), [((0, 2),)])),
        [tf.saver_slice("x", ((0, 2),), FLOATS)],
        r"the 1 slices of 'x' have 2 elements, but its shape \(4,\) has 4",
    ),
    "no slices": (tf.saver_meta(("x", 1, (4,), [])), [], r"the 0 slices of 'x' have 0 elements, but its shape \(4,\) has 4"),
    "a slice outside": (
        tf.saver_meta(("x", 1, (4,), [((2, 4),)])),
        [],
        r"the slice \(\(2, 4\),\) of 'x' is not within its shape \(4,\)",
    ),
    "a large shape": (
        tf.saver_meta(("x", 1, (1 << 50,), [WHOLE])),
        [tf.saver_slice("x", WHOLE, FLOATS)],
        "it has 4 values in place of",
    ),
    "bytes that are no bools": (
        tf.saver_meta(("x", 10, (1,), [WHOLE])),
        [tf.saver_slice("x", WHOLE, tf.message((4, b"\x07")))],
        "'x' is of",
    ),
}


@pytest.mark.parametrize(("meta", "records", "told"), SAVER.values(), ids=SAVER)
def test_a_file_of_the_first_saver_that_cannot_be_true(tmp_path, meta, records, told):
    checkpoint = saver(tmp_path, meta, *records)
    with pytest.raises(errors.DamagedCheckpointError, match=rf"model\.ckpt is damaged: .*{told}") as raised:
        checkpoint.read("x")
    assert "'x'" in str(raised.value)


METAS = {
    "a negative size": (tf.saver_meta(("x", 1, (-4,), [])), r"is damaged: the shape of 'x' is \(-4,\), which no array has"),
    "two dtypes": (
        tf.saver_meta(("x", 1, (4,), []), ("x", 2, (4,), [])),
        r"is damaged: 'x' has shape \(4,\) and dtype number 2, but elsewhere \(4,\) and 1",
    ),
    "newer readers": (tf.saver_meta(version=((2, 5),)), "is for readers of version 5 or newer of the format"),
    "no message": (b"\x0a\x09", "is damaged: the record of the empty key cannot be parsed, a field of 9 bytes"),
}


@pytest.mark.parametrize(("meta", "told"), METAS.values(), ids=METAS)
def test_what_names_the_tensors_cannot_be_true(tmp_path, meta, told):
    with pytest.raises(errors.CheckpointError, match=rf"model\.ckpt {told}"):
        saver(tmp_path, meta)


def test_a_table_that_is_no_checkpoint(tmp_path):
    (tmp_path / "model.ckpt").write_bytes(tf.table([(b"a", b"b")]))
    with pytest.raises(errors.DamagedCheckpointError, match=r"it has no record with the empty key, which names the tensors"):
        open_checkpoint(tmp_path / "model.ckpt")


def test_names_that_a_file_of_the_first_saver_lacks(tmp_path):
    checkpoint = saver(
        tmp_path, tf.saver_meta(("x", 1, (4,), [WHOLE]), ("state", 21, (), [()])), tf.saver_slice("x", WHOLE, FLOATS)
    )
    assert checkpoint.keys() == ["x"]
    with pytest.raises(errors.CheckpointError, match=r"model\.ckpt has no tensor 'y'\. It has: 'x'\."):
        checkpoint.read("y")
    with pytest.raises(errors.CheckpointError, match=r"'state' is a variant"):
        checkpoint.read("state")
