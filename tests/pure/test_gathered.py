"""The gradient of a function that gathers weights: it keeps no weight for its backward pass, and what checkpoints keep."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicant.tracing.gradients._gathered_variable import gathered_p, vjp

ROWS, WIDTH = 3, 8
X = jnp.linspace(-1.0, 1.0, ROWS * WIDTH).reshape(ROWS, WIDTH)
WEIGHT = jnp.linspace(-0.5, 0.5, WIDTH * WIDTH).reshape(WIDTH, WIDTH)
FACTORS = jnp.linspace(0.0, 1.0, WIDTH * 2).reshape(WIDTH, 2), jnp.linspace(-1.0, 1.0, WIDTH * 2).reshape(2, WIDTH)


def whole() -> Any:
    return NamedSharding(Mesh(np.array(jax.devices("cpu")[:1]), ("replica",)), PartitionSpec())


def gathered(shift: Any) -> Any:
    return gathered_p.bind(WEIGHT, shift, axis=0, whole=whole())


def plain(weight: Any) -> Any:
    return jnp.tanh(jnp.tanh(X @ weight) @ weight)


def narrow(weight: Any) -> Any:
    small = weight.astype("bfloat16")
    return (jnp.tanh(X.astype("bfloat16") @ small) @ small).astype("float32")


def transposed(weight: Any) -> Any:
    turned = (2.0 * weight).T
    return jnp.tanh(X @ turned) @ turned


def with_factors(weight: Any) -> Any:
    adapted = weight + FACTORS[0] @ FACTORS[1]
    return jnp.tanh(X @ adapted) @ adapted


def scanned(weight: Any) -> Any:
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ weight), None), X, None, length=3)[0]


def rematerialized(weight: Any) -> Any:
    x = X
    for _ in range(2):
        x = jax.checkpoint(lambda x, w: jnp.sin(jnp.cos(jnp.sin(jnp.cos(x @ w)))))(x, weight)
    return x


BODIES: dict[str, Callable[[Any], Any]] = {
    each.__name__: each for each in (plain, narrow, transposed, with_factors, scanned, rematerialized)
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.long
def test_the_backward_pass_keeps_the_slice_alone(body: Callable[[Any], Any]) -> None:
    def fn(shift: Any) -> Any:
        return jnp.sum(body(gathered(shift)) ** 2), jnp.float32(3)

    value, pullback, aux = vjp(fn, jnp.zeros_like(WEIGHT), [*FACTORS])
    (gradient,) = pullback(jnp.float32(1))
    expected, wanted = jax.value_and_grad(lambda w: jnp.sum(body(w) ** 2))(WEIGHT)
    assert float(aux) == 3
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, wanted, rtol=0.02 if body is narrow else 1e-5, atol=1e-6)
    kept = [x for x in jax.tree.leaves(pullback) if x.shape == WEIGHT.shape]
    assert [x is WEIGHT for x in kept] == [True]


def test_checkpoints_inside_keep_what_they_say() -> None:
    def fn(shift: Any) -> Any:
        return jnp.sum(rematerialized(gathered(shift))), None

    _, pullback, _ = vjp(fn, jnp.zeros_like(WEIGHT))
    rows = [x for x in jax.tree.leaves(pullback) if x.shape == X.shape]
    assert len(rows) == 2  # what goes into each of them
