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
        state = _kept(mask, _cell(z, state[1])[0], state)
        return state, state

    return lax.scan(step, state, (x, mask))[1]


def _cell(z: Array, c: Array) -> tuple[Results, Array]:
    """The new state of a step, and the values of its gates."""
    i, f, g, o = jnp.split(z, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    c = f * c + i * g
    return (o * jnp.tanh(c), c), jnp.concatenate([i, f, g, o], axis=-1)


def _kept(mask: Array | None, new: Results, old: Results) -> Results:
    if mask is None:
        return new
    return jnp.where(mask, new[0], old[0]), jnp.where(mask, new[1], old[1])


@lstm.defjvp
def _derivative(primals: Any, tangents: Any) -> tuple[Results, Results]:
    x, state, (kernel, recurrent_kernel, bias), mask = primals
    dx, dstate, (dkernel, drecurrent, dbias), _ = tangents
    hs, cs, gates = _with_gates(jnp.matmul(x, kernel), state, recurrent_kernel, bias, mask)
    before = jnp.concatenate([state[0][None], hs[:-1]])
    outside = jnp.matmul(dx, kernel) + _product(x, dkernel) + _product(before, drecurrent) + dbias
    turned = recurrent_kernel.T  # in the gradient, the loop multiplies by this, and should not turn it in each step
    factors = _factors(gates, jnp.concatenate([state[1][None], cs[:-1]]), cs, mask)

    def step(state: Results, given: Any) -> tuple[Results, Results]:
        dh, dc = state
        outside, (of_gates, of_carry, of_output, of_before) = given
        i, f, g, o = jnp.split((outside + lax.dot_general(dh, turned, (((1,), (1,)), ((), ())))) * of_gates, 4, axis=-1)
        dc = of_carry * dc + i + f + g
        new = o + of_output * dc
        state = (new if of_before is None else new + of_before * dh), dc
        return state, state

    return (hs, cs), lax.scan(step, dstate, (outside, factors))[1]


def _product(x: Array, weights: Array) -> Array:
    """A product whose transposition multiplies all steps as they lie, and turns the small result. XLA would turn the steps."""
    turned = lax.optimization_barrier(weights.T)
    return lax.dot_general(x, turned, (((2,), (1,)), ((), ())))


def _with_gates(z: Array, state: Results, recurrent_kernel: Array, bias: Array, mask: Array | None) -> tuple[Array, ...]:
    """The outputs, the carries and the gates of all steps. `z` are the products of the inputs."""

    def step(state: Results, given: Any) -> tuple[Results, tuple[Array, ...]]:
        z, mask = given
        new, gates = _cell(z + jnp.matmul(state[0], recurrent_kernel) + bias, state[1])
        state = _kept(mask, new, state)
        return state, (*state, gates)

    return lax.scan(step, state, (z, mask))[1]


def _factors(gates: Array, before: Array, carries: Array, mask: Array | None) -> tuple[Array, Array, Array, Array | None]:
    """What the derivatives of a step are multiplied by: those of its gates, of its carry (twice) and of the output before it."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    t = jnp.tanh(carries)
    of_gates = jnp.concatenate([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), t * o * (1 - o)], axis=-1)
    of_output = o * (1 - t * t)
    if mask is None:
        return of_gates, f, of_output, None
    return jnp.where(mask, of_gates, 0), jnp.where(mask, f, 1), jnp.where(mask, of_output, 0), jnp.where(mask, 0, jnp.ones_like(f))
