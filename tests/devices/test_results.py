"""What a strategy of several devices returns belongs to the caller: programs may consume it."""

from typing import Any

import jax
import jax.numpy as jnp

import replicant


def test_reduced_values_may_be_consumed_while_their_programs_are_in_flight() -> None:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"], fuse_replicas=False)
    consume = jax.jit(lambda x: x + 1.0, donate_argnums=0)

    @replicant.function
    def step(x: jax.Array) -> Any:
        return strategy.run(lambda x: 2.0 * x, args=(x,))

    for i in range(9):  # more than are in flight
        total = strategy.reduce("sum", step(jnp.full(4, float(i))), axis=None)
        assert consume(total).tolist() == [4.0 * i + 1.0] * 4
        assert total.is_deleted()
