"""An LSTM whose derivative has as little as possible in its loop over time.

A step of the loop needs the state of the step before. The gradients of the weights do not: each is one product of matrices over all
steps. Written as a plain loop, an LSTM adds them up step by step: six products in each step forward and back, of so few rows that
two cores do little for them. Here the loops have one product each, that of the state.

Only the derivative in forward mode is given (`custom_jvp`), and JAX makes the gradient by transposing it. So derivatives of all
orders and both modes exist, and a program without them computes what Keras computes.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..compiled._lstm_loops import cell, change, forward, kept

FAMILY = "lstm"

Results = tuple[Array, Array]


@jax.custom_jvp
def lstm(x: Array, state: Results, weights: tuple[Array, Array, Array], mask: Array | None) -> Results:
    """Compute the outputs and the carries of all steps.

    Args:
        x: The inputs, of shape (steps, batch, features).
        state: The output and the carry before the first step, of shape (batch, units).
        weights: The kernel, of shape (features, 4 * units), the recurrent kernel, of shape (units, 4 * units), and the bias, of
            shape (4 * units,). The gates have Keras's order: input, forget, carry and output.
        mask: False where the state stays as it is, of shape (steps, batch, 1), or None.

    Returns:
        Two arrays of shape (steps, batch, units).
    """
    kernel, recurrent_kernel, bias = weights

    def step(state: Results, given: Any) -> tuple[Results, Results]:
        x, mask = given
        z = jnp.matmul(x, kernel) + jnp.matmul(state[0], recurrent_kernel) + bias
        state = kept(mask, cell(z, state[1])[0], state)
        return state, state

    return lax.scan(step, state, (x, mask))[1]


@lstm.defjvp
def _derivative(primals: Any, tangents: Any) -> tuple[Results, Results]:
    x, state, (kernel, recurrent_kernel, bias), mask = primals
    dx, dstate, (dkernel, drecurrent, dbias), _ = tangents
    hs, cs, gates = forward(recurrent_kernel, jnp.matmul(x, kernel), state, bias, mask)
    before = jnp.concatenate([state[0][None], hs[:-1]])
    outside = jnp.matmul(dx, kernel) + _product(x, dkernel) + _product(before, drecurrent) + dbias
    return (hs, cs), change(outside, dstate, recurrent_kernel, gates, cs, state[1], mask)


def _product(x: Array, weights: Array) -> Array:
    """A product whose transposition multiplies all steps as they lie, and turns the small result. XLA would turn the steps."""
    turned = lax.optimization_barrier(weights.T)
    return lax.dot_general(x, turned, (((2,), (1,)), ((), ())))
