"""Programs without Keras: state as pytrees, optax, results that are the same on all replicas."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicant

pytestmark = pytest.mark.both_ways


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_optax_with_state_passed_in_and_out(num_replicas: int) -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    optimizer = optax.adam(0.1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), rng.normal(size=8).astype(np.float32)

    def loss_fn(params, x, y):
        return jnp.sum((x @ params["w"] + params["b"] - y) ** 2) / 8

    def step(state, batch):
        params, opt_state = state
        loss, gradients = jax.value_and_grad(loss_fn)(params, *batch)
        loss, gradients = replicant.get_replica_context().all_reduce("SUM", (loss, gradients))
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    state = (params, optimizer.init(params))
    expected = (params, optimizer.init(params))
    batch = strategy.experimental_distribute_values_from_function(
        lambda c: tuple(np.split(a, num_replicas)[c.replica_id_in_sync_group] for a in (x, y))
    )
    train = replicant.function(lambda state, batch: strategy.run(step, args=(state, batch)))
    for _ in range(5):
        state, loss = train(state, batch)
        value, gradients = jax.value_and_grad(loss_fn)(expected[0], x, y)
        updates, opt_state = optimizer.update(gradients, expected[1], expected[0])
        expected = (optax.apply_updates(expected[0], updates), opt_state)
        np.testing.assert_allclose(np.asarray(loss if num_replicas == 1 else loss.value), value, rtol=1e-5)
    if num_replicas > 1:  # equal on all replicas, and known to be
        assert all(
            isinstance(leaf, replicant.Mirrored)
            for leaf in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, replicant.DistributedValues))
        )
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5)


def test_random_keys_are_the_users_to_fold() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])

    def draw(key):
        own = jax.random.fold_in(key, replicant.get_replica_context().replica_id_in_sync_group)
        return jax.random.normal(key, ()), jax.random.normal(own, ())

    same, own = strategy.run(draw, args=(jax.random.PRNGKey(0),))
    assert isinstance(same, replicant.Mirrored)
    assert float(own.values[0]) != float(own.values[1])
