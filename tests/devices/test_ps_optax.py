"""optax on parameter servers: with one worker equal to optax on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, FixedShardsPartitioner, OptaxOptimizer, embedding_lookup
from replicant.errors import ArgumentError, ContextError

ONE_WORKER = SimpleClusterResolver(ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"]}))
RNG = np.random.default_rng(0)
FEATURES, TARGETS = RNG.normal(size=(6, 16, 8)).astype("f4"), RNG.normal(size=(6, 16)).astype("f4")
IDS = RNG.integers(0, 51, size=(6, 16))
START = {"w": RNG.normal(size=(8, 4)).astype("f4"), "table": RNG.normal(size=(51, 4)).astype("f4"), "bias": np.float32(0.5)}

TRANSFORMATIONS = {
    "adamw with a schedule": lambda: optax.adamw(optax.exponential_decay(0.05, 2, 0.5), weight_decay=0.01),
    "sgd with momentum, clipped": lambda: optax.chain(optax.clip(0.02), optax.sgd(0.1, momentum=0.9)),
}


@pytest.fixture(scope="module")
def strategy():
    strategy = replicant.ParameterServerStrategy(ONE_WORKER, FixedShardsPartitioner(2), transport="threads")
    yield strategy
    strategy.close()


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The servers and workers of a module's strategy live as long as the module."""
    return


def variables(strategy):
    with strategy.scope():
        return {name: replicant.Variable(value) for name, value in START.items()}


def loss_of(w, rows, bias, x, y):
    return jnp.mean(((x @ w * rows).sum(axis=1) + bias - y) ** 2)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.long
def test_equal_to_optax_on_one_device(strategy, name):
    params = variables(strategy)
    with strategy.scope():
        optimizer = OptaxOptimizer(TRANSFORMATIONS[name](), params)

    @replicant.function
    def step(x, ids, y):
        with replicant.GradientTape() as tape:
            table = params["table"].value()  # the whole of it, so that all of its rows are updated
            loss = loss_of(params["w"].value(), table[ids], params["bias"].value(), x, y)
        optimizer.apply(tape.gradient(loss, params))
        return loss

    coordinator = ClusterCoordinator(strategy)
    losses = [coordinator.schedule(step, args=batch).fetch() for batch in zip(FEATURES, IDS, TARGETS, strict=True)]

    transformation, expected = TRANSFORMATIONS[name](), {n: jnp.asarray(v) for n, v in START.items()}
    state, gradient = transformation.init(expected), jax.jit(jax.value_and_grad(_loss_of_tree))
    for i, batch in enumerate(zip(FEATURES, IDS, TARGETS, strict=True)):
        loss, grads = gradient(expected, *batch)
        updates, state = transformation.update(grads, state, expected)
        expected = optax.apply_updates(expected, updates)
        np.testing.assert_allclose(losses[i], loss, atol=1e-6)
    for n, value in expected.items():
        np.testing.assert_allclose(params[n].numpy(), value, atol=1e-6)
    assert optimizer.iterations.numpy() == 6
    slots = [leaf for leaf in jax.tree.leaves(state) if leaf.shape]
    assert {v.shape for v in optimizer.state} == {(8, 4), (51, 4), ()}
    assert len(optimizer.state) * 2 == 3 * len(slots)  # `slots` lacks the scalar's, which look like counts


def _loss_of_tree(params, x, ids, y):
    return loss_of(params["w"], params["table"][ids], params["bias"], x, y)


@pytest.mark.long
def test_rows_of_a_table_are_updated_where_they_lie(strategy):
    table = variables(strategy)["table"]
    with strategy.scope():
        optimizer = OptaxOptimizer(optax.adagrad(0.1), [table])

    @replicant.function
    def step(ids):
        with replicant.GradientTape() as tape:
            loss = (embedding_lookup(table, ids) ** 2).sum()
        optimizer.apply(tape.gradient(loss, [table]))

    coordinator = ClusterCoordinator(strategy)
    transformation, expected = optax.adagrad(0.1), jnp.asarray(START["table"])
    state = transformation.init(expected)
    for ids in IDS:
        coordinator.schedule(step, args=(ids,)).fetch()
        updates, state = transformation.update(jax.grad(lambda t, ids=ids: (t[ids] ** 2).sum())(expected), state, expected)
        expected = optax.apply_updates(expected, updates)
    np.testing.assert_allclose(table.numpy(), expected, atol=1e-6)


def test_state_is_part_of_checkpoints(strategy, tmp_path):
    with strategy.scope():
        v, other = replicant.Variable(np.ones(4, "f4")), replicant.Variable(np.ones(4, "f4"))
        optimizer, restored = OptaxOptimizer(optax.adam(0.1), v), OptaxOptimizer(optax.adam(0.1), other)
    optimizer.apply(jnp.arange(4.0))  # on the coordinator, at once
    saved = {"count": optimizer.iterations, "state": optimizer.state}
    path = replicant.Checkpoint(v=v, optimizer=saved).write(tmp_path / "checkpoint")
    replicant.Checkpoint(v=other, optimizer={"count": restored.iterations, "state": restored.state}).read(path)
    for one in (optimizer, restored):
        one.apply(jnp.arange(4.0))
    np.testing.assert_array_equal(v.numpy(), other.numpy())
    assert restored.iterations.numpy() == 2
    np.testing.assert_allclose(v.numpy(), [1.0, 0.8, 0.8, 0.8], atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optax.chain(optax.clip_by_global_norm(5.0), optax.sgd(0.1)), "mixes the elements of its gradients"),
        (lambda: optax.lamb(0.1), "mixes the elements of its gradients"),
        (lambda: optax.MultiSteps(optax.sgd(0.1), 1000).gradient_transformation(), "neither constant nor a count"),
        (lambda: optax.adafactor(0.1), r"an array of shape \(1,\)"),
        (lambda: 0.1, "takes a transformation with init and update, such as optax.adam.* Received: 0.1"),
    ],
)
def test_transformations_that_servers_cannot_apply(strategy, make, message):
    with strategy.scope():
        v = replicant.Variable(np.ones(4, "f4"))
        with pytest.raises(ArgumentError, match=message):
            OptaxOptimizer(make(), v)


def test_other_things_that_are_refused(strategy):
    with strategy.scope():
        v = replicant.Variable(np.ones(4, "f4"))
        optimizer = OptaxOptimizer(optax.sgd(0.1), [v])
    with pytest.raises(ContextError, match="Make an OptaxOptimizer in the scope of a ParameterServerStrategy"):
        OptaxOptimizer(optax.sgd(0.1), v)
    plain = replicant.Variable(1.0)
    with strategy.scope():
        for wrong in (plain, 3.0):
            with pytest.raises(ArgumentError, match="is not a variable on parameter servers"):
                OptaxOptimizer(optax.sgd(0.1), [v, wrong])
        with pytest.raises(ArgumentError, match="there are no variables to update"):
            OptaxOptimizer(optax.sgd(0.1), [])
    with pytest.raises(ArgumentError, match="got 2 gradients for 1 variables"):
        optimizer.apply([jnp.ones(4), jnp.ones(4)])
    with pytest.raises(ArgumentError, match="there is no gradient for any of the 1 variables"):
        optimizer.apply([None])
