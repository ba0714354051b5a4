"""JAX's own collectives in ``run``: the axis "replica" is that of the replicas, on one device, on several, and on uneven rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import replicant
from replicant.data import Dataset
from replicant.errors import RaggedStepError

X = np.arange(10, dtype=np.float32).reshape(5, 2)
SWAP = [(0, 1), (1, 0)]


def on(num_replicas, step, num_rows):
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(X[:num_rows]).batch(num_rows))
    return [np.asarray(x).tolist() for x in strategy.experimental_local_results(strategy.run(step, args=(batch,)))]


# Each replica has sums of its rows: of all rows, of the first two and the rest, or of the first three and the rest.
COLLECTIVES = {
    "psum": (lambda v: lax.psum(v, "replica"), [[12, 16]], [[12, 16]] * 2, [[20, 25]] * 2),
    "pmean": (lambda v: lax.pmean(v, "replica"), [[12, 16]], [[6, 8]] * 2, [[10, 12.5]] * 2),
    "pmax": (lambda v: lax.pmax(v, "replica"), [[12, 16]], [[10, 12]] * 2, [[14, 16]] * 2),
    "pmin": (lambda v: lax.pmin(v, "replica"), [[12, 16]], [[2, 4]] * 2, [[6, 9]] * 2),
    "all_gather": (lambda v: lax.all_gather(v, "replica"), [[[12, 16]]], [[[2, 4], [10, 12]]] * 2, [[[6, 9], [14, 16]]] * 2),
    "tiled": (
        lambda v: lax.all_gather(v, "replica", tiled=True),
        [[12, 16]],
        [[2, 4, 10, 12]] * 2,
        [[6, 9, 14, 16]] * 2,
    ),
    "psum_scatter": (lambda v: lax.psum_scatter(v, "replica", tiled=True), [[12, 16]], [[12], [16]], [[20], [25]]),
    "axis_index": (lambda _: lax.axis_index("replica"), [0], [0, 1], [0, 1]),
    "axis_size": (lambda _: lax.axis_size("replica"), [1], [2], [2]),
    "psum(1)": (lambda _: lax.psum(1, "replica"), [1], [2], [2]),
    "of several values": (lambda v: sum(lax.psum((v[0], v[1:]), "replica")), [[28]], [[28]] * 2, [[45]] * 2),
    "in a jit": (jax.jit(lambda v: lax.pmean(v, "replica") + 1), [[13, 17]], [[7, 9]] * 2, [[11, 13.5]] * 2),
    "twice": (lambda v: lax.psum(v - lax.pmean(v, "replica"), "replica"), [[0, 0]], [[0, 0]] * 2, [[0, 0]] * 2),
}


@pytest.mark.both_ways
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_over_the_axis_of_the_replicas(name):
    fn, alone, even, ragged = COLLECTIVES[name]
    assert on(1, lambda x: fn(x.sum(0)), 4) == alone
    assert on(2, lambda x: fn(x.sum(0)), 4) == even
    assert on(2, lambda x: fn(x.sum(0)), 5) == ragged


def test_values_go_to_other_replicas():
    def step(x):
        return lax.ppermute(x.sum(0), "replica", SWAP)

    assert on(2, step, 4) == [[10, 12], [2, 4]]
    assert on(2, step, 5) == [[14, 16], [6, 9]]
    assert on(2, step, 1) == [[0, 0], [0, 1]]  # one replica has no rows


def squares(w, x, total):
    """Half the square norm of a sum over all rows, computed from the sums of each replica."""
    return (total((x * w).sum(0)) ** 2).sum() / 2


@pytest.mark.both_ways
@pytest.mark.parametrize("num_rows", [1, 4, 5])
@pytest.mark.parametrize("num_replicas", [1, 2])
def test_gradients_go_through_collectives(num_replicas, num_rows):
    """Each replica's loss is that of all rows, divided by the number of replicas."""

    def step(x):
        def loss(w):
            return squares(w, x, functools.partial(lax.psum, axis_name="replica")) / num_replicas

        w = jnp.ones(2)
        with replicant.GradientTape() as tape:
            tape.watch(w)
            taped = loss(w)
        return [lax.psum(grad, "replica") for grad in (jax.grad(loss)(w), tape.gradient(taped, w))]

    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(X[:num_rows]).batch(num_rows))
    expected = jax.grad(squares)(jnp.ones(2), X[:num_rows], lambda v: v)
    for found in strategy.run(step, args=(batch,)):
        np.testing.assert_allclose(strategy.experimental_local_results(found)[0], expected)


def trained_by_pmap_code(num_replicas):
    """Train a linear model with a step that was written for ``jax.pmap(..., axis_name="replica")``."""
    optimizer = optax.adam(0.1)

    def loss_of(params, x):
        return ((x @ params["w"] + params["b"] - 1) ** 2).sum()

    def step(params, state, x):
        loss, grads = jax.value_and_grad(loss_of)(params, x)
        grads = lax.psum(grads, axis_name="replica")
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, lax.psum(loss, axis_name="replica")

    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    dataset = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(X / 10).batch(2))
    params = {"w": jnp.ones(2), "b": jnp.zeros(())}
    state, losses = optimizer.init(params), []
    for batch in dataset:
        params, state, loss = strategy.run(step, args=(params, state, batch))
        losses.append(float(strategy.experimental_local_results(loss)[0]))
    return losses, [np.asarray(strategy.experimental_local_results(x)[0]) for x in jax.tree.leaves(params)]


@pytest.mark.long
@pytest.mark.both_ways
def test_a_step_for_pmap_trains_as_on_one_device():
    """Two replicas have one row each, and in the last of three steps, one of them has none."""
    (losses, params), (of_two, params_of_two) = trained_by_pmap_code(1), trained_by_pmap_code(2)
    np.testing.assert_allclose(of_two, losses, rtol=1e-5)
    for found, expected in zip(params_of_two, params, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_sum_over_the_replicas_may_be_assigned():
    """It is the same on all replicas, and a value of one replica is not."""
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        total = replicant.Variable(jnp.zeros(2))
    (batch,) = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(X).batch(5))
    strategy.run(lambda x: total.assign_add(lax.psum(x.sum(0), "replica")), args=(batch,))
    assert total.numpy().tolist() == [20, 25]
    with pytest.raises(replicant.errors.DivergenceError):
        strategy.run(lambda x: total.assign_add(lax.ppermute(x.sum(0), "replica", SWAP)), args=(batch,))


def test_a_users_own_axis_of_that_name_is_another():
    def step(x):
        return jax.vmap(lambda row: lax.psum(row, "replica"), axis_name="replica")(x).sum(1)

    assert on(2, step, 5) == [[15, 15, 15], [30, 30]]
    assert on(1, step, 4) == [[28, 28, 28, 28]]


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            lambda x: lax.all_gather(x, "replica", tiled=True),
            r"all_gather over 'replica' needs equal .*; got replica 0: float32\[3, 2\], replica 1: float32\[2, 2\]\.",
        ),
        (lambda x: lax.psum(x, "replica"), r"psum over .* write replicant.get_replica_context\(\).all_gather\(x, axis=0\)"),
        (
            lambda x: lax.psum(x.sum(), "replica", axis_index_groups=[[0], [1]]),
            r"where psum over 'replica' cannot have axis_index_groups \(got \(\(0,\), \(1,\)\)\)\. Write replicant",
        ),
        (
            lambda x: lax.cond(len(x) == 3, lambda: lax.psum(x.sum(), "replica"), x.sum),
            r"an exchange is inside a branch or loop \(cond\) whose condition they do not compute in the same way",
        ),
        (
            lambda x: lax.fori_loop(0, len(x), lambda _, c: lax.psum(c, "replica"), x.sum()),
            r"replica 0: a scan of length 3 with exchanges in it, replica 1: a scan of length 2 with exchanges in it",
        ),
        (
            lambda x: lax.psum(x.sum(), "replica") if len(x) == 3 else lax.pmax(x.sum(), "replica"),
            r"Only some replicas make the exchange \(replica 0: psum over 'replica', replica 1: pmax over 'replica'\)",
        ),
    ],
)
def test_what_has_no_meaning_on_uneven_rows(fn, message):
    with pytest.raises(RaggedStepError, match=message):
        on(2, fn, 5)


def test_another_axis_is_not_bound():
    for num_replicas in (1, 2):
        with pytest.raises(NameError, match="unbound axis name: batch"):
            on(num_replicas, lambda x: lax.psum(x.sum(), "batch"), 5)


def test_a_step_of_one_replica_happens_once():
    """It is traced again when it turns out to name the axis, and what it did before is not done twice."""
    strategy = replicant.MirroredStrategy(["cpu:0"])
    with strategy.scope():
        variable = replicant.Variable(0.0)
    kept = []

    def step(x):
        variable.assign_add(1.0)
        jax.debug.callback(kept.append, x[0, 0])
        with replicant.GradientTape() as tape:
            loss = lax.psum((x * variable.value()).sum(), "replica")
        variable.assign_add(tape.gradient(loss, variable))
        return lax.fori_loop(0, 2, lambda _, c: c + lax.psum(c, "replica"), variable.value())

    found = [float(strategy.run(step, args=(X[:2],))) for _ in range(2)]
    jax.effects_barrier()
    assert (found, float(variable.numpy()), len(kept)) == ([28, 56], 14, 2)


def test_a_step_of_one_replica_in_a_function():
    strategy = replicant.MirroredStrategy(["cpu:0"])

    @replicant.function
    def function(x):
        return strategy.run(lambda x: lax.psum(x.sum(), "replica"), args=(x,))

    assert [float(function(X)), float(function(X[:2])), float(function(X))] == [45, 6, 45]
