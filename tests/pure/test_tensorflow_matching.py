"""Graphs of objects as TensorFlow could have saved them, matched with objects here: containers, modules, types of numbers."""

from collections import namedtuple

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicant
from replicant.checkpoint.tensorflow._object_graph import GRAPH_KEY
from replicant.errors import CheckpointError

from ._tensorflow_files import message, write_bundle

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def write(prefix, graph, values, slots=()):
    """Write a checkpoint.

    Args:
        graph: By the number of each node the numbers of its children, by name. The root is 0.
        values: By the number of a node its name and value.
        slots: (optimizer, variable, name, slot) as numbers of nodes.
    """
    nodes = []
    for node, children in graph.items():
        fields = [(1, message((1, child), (2, name.encode()))) for name, child in children.items()]
        if node in values:
            name, _ = values[node]
            fields.append((2, message((1, b"VARIABLE_VALUE"), (2, name.encode()), (3, f"{node}{SUFFIX}".encode()))))
        fields += [(3, message((1, var), (2, name.encode()), (3, slot))) for owner, var, name, slot in slots if owner == node]
        nodes.append((1, message(*fields)))
    tensors = {f"{node}{SUFFIX}": np.asarray(value) for node, (_, value) in values.items()}
    write_bundle(prefix, tensors | {GRAPH_KEY: np.array(message(*nodes), object)})
    return prefix


def test_containers_and_modules_are_walked_by_name(tmp_path):
    class Inner(replicant.Module):
        def __init__(self):
            super().__init__()
            self.w = replicant.Variable(jnp.zeros(2))

    class Outer(replicant.Module):
        def __init__(self):
            super().__init__()
            self.parts, self.named = [Inner(), Inner()], {"a": Inner(), 1: replicant.Variable(0.0)}

    graph = {
        0: {"net": 1, "pair": 2, "counts": 3},
        1: {"parts": 4, "named": 5},
        2: {"left": 6, "right": 7},
        3: {"0": 8, "1": 9},
        4: {"0": 10, "1": 11},
        5: {"a": 12, "1": 13},
        6: {},
        7: {},
        8: {},
        9: {},
        10: {"w": 14},
        11: {"w": 15},
        12: {"w": 16},
        13: {},
        14: {},
        15: {},
        16: {},
    }
    values = {node: ("v", np.full(2, node, "f4")) for node in (14, 15, 16)} | {13: ("v", np.float32(13))}
    values |= {6: ("v", np.float64(0.25)), 7: ("v", np.array([1, 2], "i8")), 8: ("v", np.int64(8)), 9: ("v", np.bool_(True))}
    pair = namedtuple("Pair", "left right")(0.5, np.zeros(2, "i4"))
    net = Outer()
    checkpoint = replicant.Checkpoint(net=net, pair=pair, counts=[1, False])
    checkpoint.restore(write(tmp_path / "ckpt", graph, values)).assert_consumed()
    assert [np.asarray(v.value()).tolist() for v in net.variables] == [13.0, [16.0] * 2, [14.0] * 2, [15.0] * 2]
    assert (checkpoint.pair.left, checkpoint.pair.right.tolist(), checkpoint.counts) == (0.25, [1, 2], [8, True])


def test_a_variable_that_is_added_later_gets_its_value(tmp_path):
    path = write(
        tmp_path / "ckpt",
        {0: {"all": 1, "b": 2}, 1: {"0": 3, "1": 4}, 2: {}, 3: {}, 4: {}},
        {n: ("v", np.float32(n)) for n in (2, 3, 4)},
    )
    first, second, third = (replicant.Variable(0.0) for _ in range(3))
    checkpoint = replicant.Checkpoint(all=[first])
    status = checkpoint.restore(path)
    assert (status.unexpected, status.missing) == (("b", "all/1"), ())
    checkpoint.all.append(second)
    assert float(second) == 4.0
    checkpoint.b = third
    assert (float(third), float(first)) == (2.0, 3.0)
    status.assert_consumed()


@pytest.mark.parametrize(
    ("stored", "wanted", "ok"),
    [
        (np.array([1, -2], "i8"), np.zeros(2, "i4"), True),
        (np.array([1 << 40], "i8"), np.zeros(1, "i4"), False),
        (np.array([-1], "i4"), np.zeros(1, "u4"), False),
        (np.array([0.5, np.nan, -np.inf], "f8"), np.zeros(3, "f4"), True),
        (np.array([0.1], "f8"), np.zeros(1, "f4"), False),
        (np.array([1.5], "f4"), np.zeros(1, jnp.bfloat16), True),
        (np.array([0.1], "f4"), np.zeros(1, jnp.bfloat16), False),
    ],
)
def test_numbers_may_change_their_type_if_they_stay_what_they_are(tmp_path, stored, wanted, ok):
    variable = replicant.Variable(wanted)
    checkpoint, path = replicant.Checkpoint(v=variable), write(tmp_path / "ckpt", {0: {"v": 1}, 1: {}}, {1: ("v", stored)})
    if ok:
        checkpoint.restore(path).assert_consumed()
        np.testing.assert_array_equal(np.asarray(variable.value(), np.float64), stored.astype(np.float64))
        assert variable.dtype == wanted.dtype
    else:
        lost = rf"and 1 of its 1 values are no {wanted.dtype}, such as {stored[0]!s}"
        with pytest.raises(CheckpointError, match=rf"VARIABLE_VALUE' is {stored.dtype}, {lost}"):
            checkpoint.restore(path)
        assert not np.any(np.asarray(variable.value()))


@pytest.mark.parametrize(("stored", "wanted"), [("f4", "i4"), ("i4", "f4"), ("bool", "i4"), ("i4", "bool"), ("c8", "f4")])
def test_another_kind_of_numbers_does_not_fit(tmp_path, stored, wanted):
    path = write(tmp_path / "ckpt", {0: {"v": 1}, 1: {}}, {1: ("v", np.zeros(2, stored))})
    told = rf"v: stored {np.dtype(stored)}\[2\], found {np.dtype(wanted)}\[2\]"
    with pytest.raises(CheckpointError, match=told):
        replicant.Checkpoint(v=replicant.Variable(np.zeros(2, wanted))).restore(path)


def test_one_variable_here_that_is_two_there(tmp_path):
    shared = replicant.Variable(0.0)
    path = write(tmp_path / "ckpt", {0: {"a": 1, "b": 2}, 1: {}, 2: {}}, {1: ("v", np.float32(1)), 2: ("v", np.float32(2))})
    with pytest.raises(CheckpointError, match=r"'a' is one variable here, but two in the checkpoint, 'a' and 'b'\."):
        replicant.Checkpoint(a=shared, b=shared).restore(path)


def test_two_variables_here_that_are_one_there(tmp_path):
    path = write(tmp_path / "ckpt", {0: {"a": 1, "b": 1}, 1: {}}, {1: ("v", np.float32(1))})
    one, two = replicant.Variable(0.0), replicant.Variable(0.0)
    with pytest.raises(
        CheckpointError, match=r"'a' and 'b' are two variables here, but one in the checkpoint, 'a'\. Let the objects"
    ):
        replicant.Checkpoint(a=one, b=two).restore(path)
    replicant.Checkpoint(a=one, b=one).restore(path).assert_consumed()
    assert float(one) == 1.0


def test_a_path_to_nothing_restores_nothing():
    status = replicant.Checkpoint(v=replicant.Variable(0.0)).restore(None)
    with pytest.raises(CheckpointError, match="Nothing was restored: the path was None"):
        status.assert_nontrivial_match()
    assert (status.never_saved, status.missing) == ((), ("v",))


def test_a_checkpoint_of_our_own_that_matches_nothing(tmp_path):
    path = replicant.Checkpoint(a=replicant.Variable(0.0)).save(tmp_path / "ckpt")
    status = replicant.Checkpoint(b=replicant.Variable(0.0)).restore(path)
    with pytest.raises(CheckpointError, match=r"(?s)Nothing in the checkpoint .* belongs to the objects\..*  b\n.*  a"):
        status.assert_nontrivial_match()
    status.expect_partial()


# Optimizers


def dense():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    return model, {3: ("dense/kernel", np.ones((2, 2), "f4")), 4: ("dense/bias", np.ones(2, "f4"))}


def test_a_rate_that_decays_is_not_dropped_in_silence(tmp_path):
    """A legacy optimizer has its numbers in the checkpoint: the same ones are not needed, and others are told."""
    model, values = dense()
    graph = {0: {"model": 1, "optimizer": 2}, 1: {"layer_with_weights-0": 5}, 2: {"iter": 6, "decay": 7, "momentum": 8}}
    graph |= {3: {}, 4: {}, 5: {"kernel": 3, "bias": 4}, 6: {}, 7: {}, 8: {}, 9: {}, 10: {}}
    values |= {6: ("SGD/iter", np.int64(3)), 7: ("SGD/decay", np.float32(0.1)), 8: ("SGD/momentum", np.float32(0.9))}
    values |= {9: ("SGD/dense/kernel/momentum", np.full((2, 2), 5, "f4")), 10: ("SGD/dense/bias/momentum", np.full(2, 6, "f4"))}
    path = write(tmp_path / "ckpt", graph, values, [(2, 3, "momentum", 9), (2, 4, "momentum", 10)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    status = replicant.Checkpoint(model=model, optimizer=optimizer).restore(path)
    assert (status.missing, status.unexpected) == (("optimizer/learning_rate",), ("optimizer/decay",))
    assert [np.asarray(v).tolist() for v in optimizer.momentums] == [[[5.0] * 2] * 2, [6.0] * 2]
    status.expect_partial()
    other = replicant.Checkpoint(model=model, optimizer=keras.optimizers.SGD(0.1, momentum=0.8)).restore(path)
    assert other.unexpected == ("optimizer/decay", "optimizer/momentum")
    other.expect_partial()


def test_a_loss_scale_that_is_not_used_here_is_told_and_its_rate_of_0_not_taken(tmp_path):
    model, values = dense()
    graph = {0: {"model": 1, "optimizer": 2}, 1: {"layer_with_weights-0": 5}}
    graph |= {2: {"inner_optimizer": 6, "_learning_rate": 7, "dynamic_scale": 8}, 3: {}, 4: {}, 5: {"kernel": 3, "bias": 4}}
    graph |= {6: {"_learning_rate": 9, "_iterations": 10}, 7: {}, 8: {}, 9: {}, 10: {}}
    values |= {7: ("r", np.float32(0)), 8: ("s", np.float32(1024)), 9: ("r", np.float32(0.5)), 10: ("i", np.int64(7))}
    optimizer = keras.optimizers.SGD(0.1)
    status = replicant.Checkpoint(model=model, optimizer=optimizer).restore(write(tmp_path / "ckpt", graph, values))
    assert (float(optimizer.learning_rate), int(optimizer.iterations)) == (0.5, 7)
    assert (status.missing, status.unexpected) == ((), ("optimizer/_learning_rate", "optimizer/dynamic_scale"))
    status.expect_partial()


def test_a_slot_whose_name_says_nothing_belongs_to_the_only_variable_of_its_shape(tmp_path):
    """Of two with one shape, none is taken, unless the order is asked for."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(3, use_bias=False)])
    graph = {0: {"model": 1, "optimizer": 2}, 1: {"layer_with_weights-0": 3, "layer_with_weights-1": 4}, 2: {"momentums": 5}}
    graph |= {3: {"kernel": 6, "bias": 7}, 4: {"kernel": 8}, 5: {"0": 9, "1": 10, "2": 11}, **{n: {} for n in range(6, 12)}}
    shapes = {6: (2, 3), 7: (3,), 8: (3, 3), 9: (2, 3), 10: (3,), 11: (3, 3)}
    values = {n: ("ShardedVariable", np.full(shape, n, "f4")) for n, shape in shapes.items()}
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    status = replicant.Checkpoint(model=model, optimizer=optimizer).restore(write(tmp_path / "ckpt", graph, values))
    assert [float(np.asarray(v).reshape(-1)[0]) for v in optimizer.momentums] == [9.0, 10.0, 11.0]
    status.expect_partial()

    square = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, use_bias=False), keras.layers.Dense(3, use_bias=False)])
    graph[3] = {"kernel": 6}
    graph[5] = {"0": 9, "1": 11}
    values = {n: ("ShardedVariable", np.full((3, 3), n, "f4")) for n in (6, 8, 9, 11)}
    path = write(tmp_path / "square", graph, values)
    for by_order, found in ((False, [0.0, 0.0]), (True, [9.0, 11.0])):
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(square.trainable_variables)
        status = replicant.Checkpoint(model=square, optimizer=optimizer).restore(path, by_order=by_order)
        assert [float(np.asarray(v).reshape(-1)[0]) for v in optimizer.momentums] == found
        assert status.unexpected == (() if by_order else ("optimizer/momentums/0", "optimizer/momentums/1"))
        status.expect_partial()


def test_normalizations_compute_anew_what_they_compute_from_their_variables(tmp_path):
    layer = keras.layers.Normalization()
    layer.build((None, 2))
    graph = {0: {"layer": 1}, 1: {"mean": 2, "variance": 3, "count": 4}, 2: {}, 3: {}, 4: {}}
    values = {2: ("m", np.array([1, 2], "f4")), 3: ("v", np.array([4, 4], "f4")), 4: ("c", np.int64(9))}
    replicant.Checkpoint(layer=layer).restore(write(tmp_path / "ckpt", graph, values)).assert_consumed()
    assert np.asarray(layer(np.array([[5.0, 4.0]], "f4"))).tolist() == [[2.0, 1.0]]
