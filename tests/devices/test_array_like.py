"""A Mirrored value answers as an array does, and a PerReplica value says what to write instead."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicant
from replicant import Mirrored, PerReplica
from replicant.errors import ArgumentTypeError, MissingNameError

THREE = Mirrored(jnp.asarray(3.0), num_replicas=2)
ROW = Mirrored(jnp.asarray([1.0, 2.0]), num_replicas=2)
COUNT = Mirrored(jnp.asarray(5), num_replicas=2)
BOTH = PerReplica([jnp.asarray(1.0), jnp.asarray(2.0)])


def test_a_mirrored_value_computes_on_either_side():
    cases = {
        "add": (5.0, 5.0),
        "sub": (1.0, -1.0),
        "mul": (6.0, 6.0),
        "truediv": (1.5, 2 / 3),
        "pow": (9.0, 8.0),
        "mod": (1.0, 2.0),
    }
    for name, (left, right) in cases.items():
        op = getattr(operator, name)
        for other in (2.0, np.float32(2), jnp.float32(2), np.full((), 2.0, np.float32), Mirrored(jnp.float32(2), 2)):
            assert float(op(THREE, other)) == pytest.approx(left), (name, other)
            assert float(op(other, THREE)) == pytest.approx(right), (name, other)
    np.testing.assert_array_equal(ROW @ jnp.ones((2, 1)), [3])
    np.testing.assert_array_equal(np.ones((1, 2), np.float32) @ ROW, [3])
    np.testing.assert_array_equal(-ROW, [-1, -2])
    assert (abs(-THREE) >= 3).item()
    assert divmod(COUNT, 2) == (2, 1)


def test_a_mirrored_value_converts_and_prints():
    assert (float(THREE), int(COUNT), bool(COUNT), complex(THREE), round(THREE, 1)) == (3.0, 5, True, 3 + 0j, 3.0)
    assert (f"{THREE:.2f}", f"{THREE}", str(THREE), f"{COUNT:d}") == ("3.00", "3.0", "3.0", "5")
    assert [10, 20, 30, 40, 50, 60][COUNT] == 60
    assert list(range(COUNT)) == [0, 1, 2, 3, 4]
    assert (len(ROW), [float(x) for x in ROW], float(ROW[1]), 2.0 in ROW) == (2, [1.0, 2.0], 2.0, True)
    assert (ROW.shape, ROW.ndim, ROW.dtype, ROW.size, ROW.mean().item()) == ((2,), 1, jnp.float32, 2, 1.5)
    assert (Mirrored(2, 2).shape, Mirrored(2, 2).dtype) == ((), jnp.int32)
    np.testing.assert_array_equal(jnp.asarray([1.0, 5.0]) == ROW, [True, False])
    np.testing.assert_array_equal(jnp.asarray([1.0, 0.0]) != ROW, [False, True])
    with pytest.raises(TypeError, match="unhashable"):
        hash(ROW)
    with pytest.raises(AttributeError, match="has no attribute '_nothing'"):
        _ = ROW._nothing


def test_jax_and_numpy_take_a_mirrored_value():
    np.testing.assert_array_equal(np.asarray(ROW), [1, 2])
    np.testing.assert_array_equal(jnp.stack([ROW, ROW]).sum(0), [2, 4])
    np.testing.assert_array_equal(jax.jit(lambda p: p["w"] + 1)({"w": ROW}), [2, 3])
    np.testing.assert_array_equal(jax.grad(lambda p: (p["w"] ** 2).sum())({"w": ROW})["w"], [2, 4])
    np.testing.assert_array_equal(jax.vmap(lambda row: row * 2)(ROW), [2, 4])
    assert jax.tree.map(lambda x: x.shape, jax.device_get({"w": ROW}))["w"].value == (2,)


def test_results_do_not_depend_on_the_number_of_devices():
    for n in (1, 2):
        strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(n)])
        loss = strategy.run(lambda: jnp.float32(1) + 0.5)
        assert (f"{loss:.2f}", float(loss), loss.shape, float(loss + loss)) == ("1.50", 1.5, (), 3.0)
        assert float(strategy.reduce("MEAN", loss)) == 1.5


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1, lambda x: 1 + x, lambda x: x * THREE, lambda x: jnp.ones(2) - x, lambda x: np.ones(2) - x, lambda x: -x,
        lambda x: x < 1, float, int, bool, len, jnp.asarray, np.asarray, jnp.sum, lambda x: x[0], lambda x: f"{x:.2f}", round, abs,
    ],
)  # fmt: skip
def test_a_value_that_differs_by_replica_refuses(use):
    with pytest.raises(ArgumentTypeError, match=r"(?s)differs between the 2 replicas.*strategy\.reduce.*strategy\.gather"):
        use(BOTH)


def test_a_value_that_differs_by_replica_has_no_attributes_of_an_array():
    with pytest.raises(MissingNameError, match=r"`\.shape`.*differs between the 2 replicas"):
        _ = BOTH.shape
    with pytest.raises(MissingNameError, match=r"write `\.values`, a tuple of 2"):
        _ = BOTH.value
    with pytest.raises(AttributeError, match="object has no attribute 'nothing'"):
        _ = BOTH.nothing
    assert not hasattr(BOTH, "dtype")
    assert f"{BOTH}" == str(BOTH) == repr(BOTH)
