"""Gradients of JAX through an all-reduce, in a step whose replicas have different numbers of rows: those of one device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import replicant
from replicant.data import Dataset
from replicant.errors import RaggedStepError

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def rows(strategy, num_rows):
    return next(iter(strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(X[:num_rows]).batch(num_rows))))


def spread(w, x, total):
    """A loss that normalizes by the moments of all rows, as batch normalization does. Numbers of rows have no gradient."""
    y = jnp.tanh(x @ w)
    moment, count = total((y.sum(), jnp.int32(y.shape[0])))
    (square,) = total(((y - moment / count) ** 2).sum()[None])
    return ((y - moment / count) / jnp.sqrt(square / count + 1e-3)).clip(0).sum()


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
@pytest.mark.parametrize("num_rows", [2, 5])
@pytest.mark.long_cases("5-SUM")
def test_gradients_through_a_reduction_equal_those_of_one_device(num_rows, op):
    """Of two rows on three replicas, one replica has none."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(3)])
    w = jnp.arange(1.0, 4.0) / 4

    def step(x):
        context = replicant.get_replica_context()
        scale = 3 if op == "MEAN" else 1
        return context.all_reduce(
            "SUM", jax.grad(spread)(w, x, lambda v: jax.tree.map(lambda x: x * scale, context.all_reduce(op, v)))
        )

    found = strategy.run(step, args=(rows(strategy, num_rows),))
    np.testing.assert_allclose(found, jax.grad(spread)(w, jnp.asarray(X[:num_rows]), lambda v: v), rtol=1e-5, atol=1e-6)


def test_directions_go_through_as_well():
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(3)])
    w = jnp.arange(1.0, 4.0) / 4

    def step(x):
        context = replicant.get_replica_context()
        return context.all_reduce("SUM", jax.jvp(lambda w: spread(w, x, lambda v: context.all_reduce("SUM", v)), (w,), (w,))[1])

    expected = jax.jvp(lambda w: spread(w, jnp.asarray(X), lambda v: v), (w,), (w,))[1]
    np.testing.assert_allclose(strategy.run(step, args=(rows(strategy, 5),)), expected, rtol=1e-5)


def test_other_exchanges_have_no_gradient_there():
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    def step(x):
        gather = replicant.get_replica_context().all_gather
        return jax.grad(lambda w: gather(x * w, axis=0).sum())(2.0)

    with pytest.raises(RaggedStepError, match=r"a gradient of JAX goes through all_gather, where exchanges need equal numbers"):
        strategy.run(step, args=(rows(strategy, 5),))


def test_a_tape_says_what_it_cannot_do():
    """Where Flax's BatchNorm normalizes with all rows, a tape needs equal numbers of them."""
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        dense = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        norm = nnx.BatchNorm(3, axis_name="replica", rngs=nnx.Rngs(0))

    def step(x):
        with replicant.GradientTape() as tape:
            loss = (norm(dense(x)) ** 3).sum()
        return tape.gradient(loss, nnx.state(dense, nnx.Param))

    with pytest.raises(RaggedStepError, match=r"all_reduce lies between the sources and the target of a gradient"):
        strategy.run(step, args=(rows(strategy, 5),))
