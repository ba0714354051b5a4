"""Attention whose derivative passes over its scores as seldom as possible.

The scores of attention have one element for each pair of positions, so they are by far the largest arrays of a transformer. Plain
softmax divides them by their sums, and its gradient needs the sum of the scores' products with their cotangents. Here the smaller
output is divided, and its products with its cotangents have the same sum: that is how FlashAttention's gradient begins
(https://arxiv.org/abs/2205.14135, appendix B).

Only the derivative in forward mode is given (`custom_jvp`), and JAX makes the gradient by transposing it. So derivatives of all
orders and both modes exist.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

FAMILY = "attention"

# What jax.nn.dot_product_attention has for a score that is masked. A row without any other is spread evenly.
_MASKED = -0.7 * float(np.finfo(np.float32).max)


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def attention(query: Array, key: Array, value: Array, mask: Array | None, scale: float) -> Array:
    """Compute what ``jax.nn.dot_product_attention`` computes.

    Args:
        query: The queries, of shape (batch, positions, heads, features), float32.
        key: The keys, of shape (batch, other positions, heads, features).
        value: The values, of the same shape.
        mask: False where a position does not attend to another, of a shape that broadcasts to (batch, heads, positions, other
            positions), or None.
        scale: What the products of queries and keys are multiplied by.

    Returns:
        An array of the shape of the queries.
    """
    query, key, value = map(_turned, (query, key, value))
    weights, share = _weights(query, key, mask, scale)
    return _turned(jnp.matmul(weights, value) * share)


def _turned(x: Array) -> Array:
    """Exchange the axes of positions and heads."""
    return jnp.swapaxes(x, 1, 2)


def _weights(query: Array, key: Array, mask: Array | None, scale: float) -> tuple[Array, Array]:
    """What each position takes of others, of shape (batch, heads, positions, other positions), and what that is multiplied by."""
    scores = _scores(query * scale, key)
    if mask is not None:
        scores = jnp.where(mask, scores, _MASKED)
    # The barrier keeps XLA from computing the exponentials again wherever they are used.
    weights = lax.optimization_barrier(jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True)))
    return weights, 1 / jnp.sum(weights, axis=-1, keepdims=True)


def _scores(query: Array, key: Array) -> Array:
    return lax.dot_general(query, key, (((3,), (3,)), ((0, 1), (0, 1))))


@attention.defjvp
def _derivative(
    scale: float, primals: tuple[Array, Array, Array, Array | None], tangents: tuple[Array, Array, Array, object]
) -> tuple[Array, Array]:
    query, key, value = map(_turned, primals[:3])
    dquery, dkey, dvalue = map(_turned, tangents[:3])
    mask = primals[3]
    weights, share = _weights(query, key, mask, scale)
    out = jnp.matmul(weights, value) * share
    # A masked score is a constant. It has no weight, except in a row where all are masked.
    of_scores = weights if mask is None else jnp.where(mask, weights, 0)
    change = of_scores * (_scores(dquery * scale, key) + _scores(query * scale, dkey))
    of_share = jnp.sum(change, axis=-1, keepdims=True) * share
    dout = (jnp.matmul(change, value) + jnp.matmul(weights, dvalue)) * share - out * of_share
    return _turned(out), _turned(dout)
