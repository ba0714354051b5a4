"""Haiku, flowjax, chex and Optax train as on one device, which computes without Replicant. The last batch divides unevenly."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import equinox as eqx
import flowjax.distributions
import flowjax.flows
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
import paramax
import pytest

import replicant
from replicant.data import Dataset
from replicant.errors import BackendError
from replicant.nnx import _haiku

ROWS, BATCH, WIDTH, CLASSES = 21, 8, 4, 3  # batches of 8, 8 and 5 rows; the last is cut into 3 and 2
EVEN = 16  # rows that make whole batches
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)
Y = RNG.integers(0, CLASSES, ROWS).astype(np.int32)
WITH_NAN = np.where(np.arange(ROWS)[:, None] == 9, np.float32("nan"), X)  # in the second batch


class Case(NamedTuple):
    """A training step, written with `total`, which adds values of the replicas.

    Attributes:
        start: What the step is given, and returns.
        step: ``step(state, x, y, total)`` returns the next state.
        x: The examples.
    """

    start: Any
    step: Callable[..., Any]
    x: np.ndarray = X


def with_replicant(strategy: Any, case: Case) -> Any:
    context = replicant.get_replica_context

    def step(state: Any, x: Any, y: Any) -> Any:
        return case.step(state, x, y, lambda values: context().all_reduce("SUM", values))

    state = case.start
    dataset = Dataset.from_tensor_slices((case.x, Y[: len(case.x)])).batch(BATCH)
    for batch in strategy.experimental_distribute_dataset(dataset):
        state = strategy.run(step, args=(state, *batch))
    return strategy.experimental_local_results(state)[0]


def alone(case: Case) -> Any:
    step, state = jax.jit(lambda state, x, y: case.step(state, x, y, lambda values: values)), case.start
    for i in range(0, len(case.x), BATCH):
        state = step(state, case.x[i : i + BATCH], Y[: len(case.x)][i : i + BATCH])
    return state


def losses_of(logits: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).sum() / BATCH


def mlp() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "hidden": {"w": jnp.asarray(rng.normal(size=(WIDTH, 8)), jnp.float32), "b": jnp.zeros(8)},
        "out": {"w": jnp.asarray(rng.normal(size=(8, CLASSES)), jnp.float32), "b": jnp.zeros(CLASSES)},
    }


def logits_of(params: Any, x: Any) -> Any:
    hidden = jax.nn.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


def with_optax(tx: Any, x: np.ndarray = X) -> Case:
    def step(state: Any, x: Any, y: Any, total: Any) -> Any:
        params, slots = state
        grads = total(jax.grad(lambda params: losses_of(logits_of(params, x), y))(params))
        updates, slots = tx.update(grads, slots, params)
        return optax.apply_updates(params, updates), slots

    return Case((mlp(), tx.init(mlp())), step, x)


def lbfgs() -> Case:
    """The line search evaluates the loss and its gradient, which must be those of the whole batch.

    It is a loop, in which exchanges need as many rows on each replica.
    """
    tx = optax.lbfgs()

    def step(state: Any, x: Any, y: Any, total: Any) -> Any:
        @jax.custom_vjp
        def loss(params: Any) -> Any:
            return total(losses_of(logits_of(params, x), y))

        def forward(params: Any) -> Any:
            return total(jax.value_and_grad(lambda params: losses_of(logits_of(params, x), y))(params))

        loss.defvjp(forward, lambda grads, scale: (jax.tree.map(lambda grad: scale * grad, grads),))
        params, slots = state
        value, grads = jax.value_and_grad(loss)(params)
        updates, slots = tx.update(grads, slots, params, value=value, grad=grads, value_fn=loss)
        return optax.apply_updates(params, updates), slots

    return Case((mlp(), tx.init(mlp())), step, X[:EVEN])


def sam() -> Case:
    """A transformation that averages over the axis of the replicas, inside a loop, the gradients of means of their rows."""

    def step(state: Any, x: Any, y: Any, total: Any) -> Any:
        axis, near = "replica" if replicant.has_strategy() else None, optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
        tx = optax.contrib.sam(optax.sgd(0.1), near, sync_period=3, opaque_mode=True, batch_axis_name=axis)
        params, slots = state
        grad = jax.grad(lambda params: losses_of(logits_of(params, x), y) * BATCH / len(y))
        grads = jax.tree.map(lambda value: value * len(y) / BATCH, grad(params))
        updates, slots = tx.update(total(grads), slots, params, grad_fn=lambda params, _: grad(params))
        return optax.apply_updates(params, updates), slots

    start = optax.contrib.sam(optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.05)), opaque_mode=True)
    return Case((mlp(), start.init(mlp())), step, X[:EVEN])


def mlp_of_haiku(x: Any) -> Any:
    return hk.nets.MLP([8, CLASSES])(x)


def haiku() -> Case:
    net, tx = hk.without_apply_rng(hk.transform(mlp_of_haiku)), optax.adam(1e-2)
    params = net.init(jax.random.key(0), X[:1])

    def step(state: Any, x: Any, y: Any, total: Any) -> Any:
        params, slots = state
        grads = total(jax.grad(lambda params: losses_of(net.apply(params, x), y))(params))
        updates, slots = tx.update(grads, slots, params)
        return optax.apply_updates(params, updates), slots

    return Case((params, tx.init(params)), step)


def haiku_norm() -> Case:
    """The statistics of a normalization over all replicas are those of the whole batch."""

    def forward(x: Any, axis: str | None) -> Any:
        x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.8, cross_replica_axis=axis)(hk.Linear(8)(x), True)
        return hk.Linear(CLASSES)(jax.nn.relu(x))

    net, tx = hk.without_apply_rng(hk.transform_with_state(forward)), optax.sgd(0.1, momentum=0.9)
    params, averages = net.init(jax.random.key(0), X[:2], None)

    def step(state: Any, x: Any, y: Any, total: Any) -> Any:
        params, averages, slots = state
        axis = "replica" if replicant.has_strategy() else None

        def loss(params: Any) -> Any:
            logits, changed = net.apply(params, averages, x, axis)
            return losses_of(logits, y), changed

        grads, averages = jax.grad(loss, has_aux=True)(params)
        updates, slots = tx.update(total(grads), slots, params)
        return optax.apply_updates(params, updates), averages, slots

    return Case((params, averages, tx.init(params)), step)


def flowjax_flow() -> Case:
    """A normalizing flow. What is trained is a module with holes, as in flowjax's own loops."""
    flow = flowjax.flows.masked_autoregressive_flow(
        jax.random.key(0), base_dist=flowjax.distributions.Normal(jnp.zeros(WIDTH)), flow_layers=2, nn_width=8
    )
    tx, frozen = optax.adam(1e-2), lambda leaf: isinstance(leaf, paramax.NonTrainable)
    params, static = eqx.partition(flow, eqx.is_inexact_array, is_leaf=frozen)

    def step(state: Any, x: Any, y: Any, total: Any) -> Any:
        params, slots = state

        def loss(params: Any) -> Any:
            return -paramax.unwrap(eqx.combine(params, static, is_leaf=frozen)).log_prob(x).sum() / BATCH

        updates, slots = tx.update(total(jax.grad(loss)(params)), slots, params)
        return eqx.apply_updates(params, updates), slots

    return Case((params, tx.init(params)), step)


@chex.dataclass(frozen=True)
class State:
    params: Any
    slots: Any
    steps: Any


def chex_dataclass() -> Case:
    """A state that is a dataclass of chex, in a step whose shapes and dtypes chex checks."""
    tx = optax.sgd(0.1, momentum=0.9)

    def step(state: Any, x: Any, y: Any, total: Any) -> Any:
        chex.assert_rank([x, y], [2, 1])
        chex.assert_shape(x, (y.shape[0], WIDTH))
        grads = total(jax.grad(lambda params: losses_of(logits_of(params, x), y))(state.params))
        chex.assert_trees_all_equal_shapes_and_dtypes(grads, state.params)
        updates, slots = tx.update(grads, state.slots, state.params)
        return state.replace(params=optax.apply_updates(state.params, updates), slots=slots, steps=state.steps + 1)

    return Case(State(params=mlp(), slots=tx.init(mlp()), steps=jnp.zeros((), jnp.int32)), step)


CASES: dict[str, Callable[[], Case]] = {
    "haiku": haiku,
    "haiku_norm": haiku_norm,
    "flowjax": flowjax_flow,
    "chex": chex_dataclass,
    "multi_steps": lambda: with_optax(optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2)),
    "schedule_free": lambda: with_optax(optax.contrib.schedule_free_sgd(0.1)),
    "muon": lambda: with_optax(optax.contrib.muon(1e-2)),
    "lbfgs": lbfgs,
    "sam": sam,
    "apply_if_finite": lambda: with_optax(optax.apply_if_finite(optax.sgd(0.1, momentum=0.9), max_consecutive_errors=3), WITH_NAN),
}


@pytest.mark.parametrize("name", CASES)
def test_trains_as_on_one_device(strategy: Any, name: str) -> None:
    case = CASES[name]()
    expected, found = alone(case), with_replicant(strategy, case)
    assert any(not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (expected, case.start)), strict=True))
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_trained_flow_is_put_together_again(strategy: Any) -> None:
    """Trees of JAX that are combined need the same structure, so the arrays are taken out of what `run` returned."""
    flow = flowjax.distributions.Normal(jnp.zeros(2))
    params, static = eqx.partition(flow, eqx.is_inexact_array)
    doubled = strategy.run(lambda params: jax.tree.map(lambda v: v + 1, params), args=(params,))
    whole = eqx.combine(strategy.experimental_local_results(doubled)[0], static)
    assert float(paramax.unwrap(whole).log_prob(jnp.ones(2))) < float(paramax.unwrap(flow).log_prob(jnp.zeros(2)))


def test_a_batch_with_nan_is_left_out(strategy: Any) -> None:
    case = CASES["apply_if_finite"]()
    _, slots = with_replicant(strategy, case)
    assert (int(slots.total_notfinite), bool(slots.last_finite)) == (1, True)


def test_statistics_on_a_replica_without_rows(strategy: Any) -> None:
    net = hk.without_apply_rng(
        hk.transform_with_state(lambda x, axis: hk.BatchNorm(False, False, 0.8, cross_replica_axis=axis)(x, True))
    )
    _, averages = net.init(None, X[:2], None)
    [batch] = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(X[:1]).batch(BATCH))
    _, found = strategy.run(lambda x: net.apply({}, averages, x, "replica"), args=(batch,))
    expected = net.apply({}, averages, X[:1], None)[1]
    chex.assert_trees_all_close(strategy.experimental_local_results(found)[0], expected, rtol=1e-6)


def test_another_batch_norm_is_refused() -> None:
    class Other:
        __version__ = "0.1"
        BatchNorm = hk.LayerNorm

    with pytest.raises(
        BackendError, match=r"Haiku 0\.1 is not supported: haiku\.BatchNorm does not average with jax\.lax\.pmean\."
    ):
        _haiku.install(Other, importlib.import_module("haiku._src.layer_norm"))
