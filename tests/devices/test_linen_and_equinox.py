"""Flax Linen's TrainState and Equinox's modules go through `run` as values, and come back as values that work outside."""

import copy
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
from flax.training import train_state

import replicant
from replicant.errors import ArgumentError

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

from _neighbours import (
    BATCH,
    EQUINOX,
    INPUTS,
    LABELS,
    LINEN,
    ROWS,
    WIDTH,
    LinenMLP,
    all_reduce,
    batches,
    cross_entropy,
    make_optimizer,
    mirrored,
)

KINDS = ["mlp", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lstm", "transformer"))]


class TrainState(train_state.TrainState):
    batch_stats: dict


def assert_close(found, expected, tolerance=1e-5):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=tolerance, rtol=tolerance)


def linen_state(kind):
    model = LINEN[kind]()
    variables = model.init(jax.random.key(0), INPUTS[kind][:2], train=False)
    return TrainState.create(
        apply_fn=model.apply, params=variables["params"], tx=make_optimizer(kind), batch_stats=variables.get("batch_stats", {})
    )


def linen_step(state, x, y):
    def loss_fn(params):
        logits, new = state.apply_fn({"params": params, "batch_stats": state.batch_stats}, x, mutable=["batch_stats"])
        return cross_entropy(logits, y), new.get("batch_stats", {})

    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=all_reduce(grads), batch_stats=stats), loss


def one_device_linen(kind, rows):
    state = linen_state(kind)

    @jax.jit
    def step(state, x, y):
        def loss_fn(params):
            variables = {"params": params, "batch_stats": state.batch_stats}
            logits, new = jax.vmap(lambda x: state.apply_fn(variables, x, mutable=["batch_stats"]), axis_name="replica")(x[None])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits[0], y)
            return losses.sum() / BATCH, jax.tree.map(lambda each: each[0], new.get("batch_stats", {}))

        grads, stats = jax.grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=stats)

    for _ in range(2):
        for i in range(0, rows, BATCH):
            state = step(state, INPUTS[kind][i : min(i + BATCH, rows)], LABELS[i : min(i + BATCH, rows)])
    return state


@pytest.mark.parametrize("kind", [*KINDS, pytest.param("cnn", marks=pytest.mark.slow)])
def test_linen_training_equals_one_device(kind):
    """The last batch has 6 rows for 4 replicas. The batch statistics of the CNN are those of all replicas."""
    strategy, state, rows = mirrored(4), linen_state(kind), ROWS
    train = replicant.function(lambda state, batch: strategy.run(linen_step, args=(state, *batch)))
    for _ in range(2):
        for batch in batches(strategy, kind, rows=rows):
            state, _ = train(state, batch)
    expected = one_device_linen(kind, rows)
    assert int(state.step) == int(expected.step)
    assert_close((state.params, state.opt_state, state.batch_stats), (expected.params, expected.opt_state, expected.batch_stats))


def test_a_linen_state_works_outside_of_run():
    strategy, state = mirrored(2), linen_state("mlp")
    (batch, *_) = batches(strategy, "mlp")
    state, _ = strategy.run(linen_step, args=(state, *batch))
    x = INPUTS["mlp"]
    logits = state.apply_fn({"params": state.params}, x)
    assert_close(jax.jit(lambda p: LinenMLP().apply({"params": p}, x))(state.params), logits)
    assert f"{state.step:d}" == "1"
    plain = linen_state("mlp")
    again = serialization.from_bytes(plain.params, serialization.to_bytes(state.params))
    assert_close(again, state.params, tolerance=0)
    assert_close(serialization.from_bytes(state.params, serialization.to_bytes(plain.params)), plain.params, tolerance=0)
    other = jax.tree.map(lambda x: np.zeros((*np.shape(x), 2), np.float32), plain.params)
    with pytest.raises(ArgumentError, match=r"the saved value has the shape \(.*, 2\), and the target \("):
        serialization.from_bytes(state.params, serialization.to_bytes(other))
    assert_close(serialization.from_state_dict(state, serialization.to_state_dict(state)).params, state.params, tolerance=0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.long_cases("False")
def test_a_step_counter_costs_no_program_for_each_step(compiled, caplog):
    """Flax begins with a Python number. It is a constant of the first program, and an input of all later ones."""
    strategy, state = mirrored(2), linen_state("mlp")
    caplog.set_level("DEBUG", "replicant.programs")  # it tells of each trace

    def train(state, batch):
        return strategy.run(linen_step, args=(state, *batch))

    train = replicant.function(train) if compiled else train
    assert type(state.step) is int
    known = []
    for _ in range(4):
        for batch in batches(strategy, "mlp", rows=16):
            state, _ = train(state, batch)
            known.append(len(caplog.messages))
    assert int(state.step) == 8
    assert known[0] > 0
    assert known[2:] == [known[2]] * 6  # nothing is traced after the third step
    if compiled:
        assert train.num_compiled == 2


def equinox_step(tx):
    def step(model, slots, x, y):
        loss, grads = eqx.filter_value_and_grad(lambda m: cross_entropy(jax.vmap(m)(x), y))(model)
        updates, slots = tx.update(all_reduce(grads), slots, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), slots, loss

    return step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long_cases("mlp")
def test_equinox_training_equals_one_device_with_ragged_batches(kind):
    strategy, tx = mirrored(4), make_optimizer(kind)
    model = EQUINOX[kind](jax.random.key(0))
    slots = tx.init(eqx.filter(model, eqx.is_inexact_array))
    expected, expected_slots = model, slots
    step = equinox_step(tx)
    for _ in range(2):
        for batch in batches(strategy, kind):
            model, slots, _ = strategy.run(step, args=(model, slots, *batch))

    @eqx.filter_jit
    def plain(model, slots, x, y):
        def loss_fn(m):
            return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(m)(x), y).sum() / BATCH

        updates, slots = tx.update(eqx.filter_grad(loss_fn)(model), slots, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), slots

    for _ in range(2):
        for i in range(0, ROWS, BATCH):
            expected, expected_slots = plain(expected, expected_slots, INPUTS[kind][i : i + BATCH], LABELS[i : i + BATCH])
    assert_close(eqx.filter(model, eqx.is_array), eqx.filter(expected, eqx.is_array))
    assert_close(slots, expected_slots)
    x = INPUTS[kind]
    assert_close(jax.vmap(model)(x), jax.vmap(expected)(x))  # it can be called outside
    assert_close(eqx.filter_jit(lambda m, x: jax.vmap(m)(x))(model, x), jax.vmap(expected)(x))


def test_equinox_modules_are_written_and_read(tmp_path):
    strategy = mirrored(2)
    model = strategy.run(
        lambda m: jax.tree.map(lambda a: a * 2 if eqx.is_array(a) else a, m), args=(EQUINOX["mlp"](jax.random.key(0)),)
    )
    eqx.tree_serialise_leaves(str(tmp_path / "model.eqx"), model)
    again = eqx.tree_deserialise_leaves(str(tmp_path / "model.eqx"), EQUINOX["mlp"](jax.random.key(1)))
    assert_close(eqx.filter(again, eqx.is_array), eqx.filter(model, eqx.is_array), tolerance=0)


def test_pytrees_that_run_returns_keep_their_structure_through_further_steps():
    strategy = mirrored(2)
    params = {"w": jnp.ones((WIDTH, 2)), "frozen": None, "name": "layer"}
    once = strategy.run(lambda p: {**p, "w": p["w"] * 2}, args=(params,))
    twice = strategy.run(lambda p: {**p, "w": p["w"] * 2}, args=(once,))
    assert_close(twice["w"], 4 * params["w"])
    assert (twice["frozen"], twice["name"]) == (None, "layer")
    assert_close(copy.deepcopy(twice)["w"], 4 * params["w"])


def test_checkpoints_of_states(tmp_path):
    strategy, state = mirrored(2), linen_state("mlp")
    (batch, *_) = batches(strategy, "mlp")
    state, _ = strategy.run(linen_step, args=(state, *batch))
    path = replicant.Checkpoint(params=state.params, slots=state.opt_state).save(str(tmp_path / "c"))
    fresh = linen_state("mlp")
    checkpoint = replicant.Checkpoint(params=fresh.params, slots=fresh.opt_state)
    checkpoint.restore(path).assert_consumed()
    assert_close(checkpoint.params, state.params, tolerance=0)
    assert_close(checkpoint.slots, state.opt_state, tolerance=0)
