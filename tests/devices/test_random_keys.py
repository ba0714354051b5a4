"""Each replica draws what its key gives on one device, with every generator of JAX, in whatever the draw stands."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import replicant
from replicant.data import Dataset

NUM_REPLICAS = 3
GENERATORS = ["threefry2x32", "rbg", "unsafe_rbg"]


def in_scan(key: Any) -> Any:
    def body(key: Any, _: Any) -> Any:
        key, drawn = jax.random.split(key)
        return key, jax.random.uniform(drawn, 2)

    return lax.scan(body, key, None, length=3)[1]


def in_while(key: Any) -> Any:
    """A loop that takes another number of turns for each key."""

    def body(state: Any) -> Any:
        turn, key, total = state
        key, drawn = jax.random.split(key)
        return turn + 1, key, total + jax.random.uniform(drawn)

    turns = jax.random.randint(key, (), 1, 5)
    return lax.while_loop(lambda state: state[0] < turns, body, (0, key, jnp.float32(0)))[2]


def in_cond(key: Any) -> Any:
    return lax.cond(jax.random.bernoulli(key), lambda: jax.random.uniform(key, 2), lambda: -jax.random.exponential(key, 2))


def in_a_gradient(key: Any) -> Any:
    def loss(weight: Any) -> Any:
        return jnp.sum(jax.random.normal(key, 3) * weight**2)

    return jax.grad(jax.checkpoint(loss))(jnp.float32(2))


DRAWS: dict[str, Callable[[Any], Any]] = {
    "bits": lambda key: jax.random.bits(key, 3),
    "normal": lambda key: jax.random.normal(key, 3),
    "split": lambda key: jax.random.key_data(jax.random.split(key)),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 7)),
    "gamma": lambda key: jax.random.gamma(key, 2.0, (3,)),
    "permutation": lambda key: jax.random.permutation(key, 8),
    "vmap": lambda key: jax.vmap(lambda key: jax.random.uniform(key, 2))(jax.random.split(key, 3)),
    "raw": lambda key: lax.rng_bit_generator(jnp.resize(jax.random.key_data(key), 4), (3,))[1],
    "scan": in_scan,
    "while": in_while,
    "cond": in_cond,
    "gradient": in_a_gradient,
}


def draw_all(key: Any) -> dict[str, Any]:
    return {name: draw(key) for name, draw in DRAWS.items()}


@pytest.mark.both_ways
@pytest.mark.parametrize("generator", GENERATORS)
def test_each_replica_draws_what_one_device_draws(generator: str) -> None:
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(NUM_REPLICAS)])
    key = jax.random.key(3, impl=generator)

    def step(key: Any) -> Any:
        replica = replicant.get_replica_context().replica_id_in_sync_group
        return jax.random.key_data(jax.random.fold_in(key, replica)), draw_all(jax.random.fold_in(key, replica))

    keys, drawn = strategy.run(step, args=(key,))
    alone = jax.jit(draw_all)
    for replica, data in enumerate(strategy.experimental_local_results(keys)):
        own = jax.random.fold_in(key, replica)
        np.testing.assert_array_equal(data, jax.random.key_data(own))
        for name, expected in alone(own).items():
            found = strategy.experimental_local_results(drawn[name])
            np.testing.assert_allclose(found[replica], expected, rtol=2e-6, err_msg=f"{name} on replica {replica}")
    for name, each in drawn.items():
        found = [np.asarray(x).tolist() for x in strategy.experimental_local_results(each)]
        assert all(found.count(x) == 1 for x in found), (name, found)


@pytest.mark.parametrize("generator", GENERATORS)
def test_dropout_of_flax_on_replicas_of_unequal_rows(generator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica's mask depends on its number alone: not on the other replicas, and not on how they are computed."""

    def masks(num_replicas: int, apart: str) -> list[Any]:
        monkeypatch.setenv("REPLICANT_FUSE_REPLICAS", apart)
        strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
        with strategy.scope(), jax.default_prng_impl(generator):
            dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        rows = Dataset.from_tensor_slices(np.ones((num_replicas * 5 - 1, 8), np.float32)).batch(num_replicas * 3)
        batches = strategy.experimental_distribute_dataset(rows)
        return [strategy.experimental_local_results(strategy.run(dropout, args=(batch,))) for batch in batches]

    (full, short), (_, fewer) = masks(3, "1"), masks(2, "1")
    for fused, apart in zip((full, short), masks(3, "0"), strict=True):
        np.testing.assert_array_equal(np.concatenate(fused), np.concatenate(apart))
    assert [len(x) for x in short] == [2, 2, 1]
    np.testing.assert_array_equal(short[0], fewer[0])
    assert len({np.asarray(x).tobytes() for x in full}) == 3
