"""The loops over time of an LSTM's derivative: as JAX writes them, or as a function that numba compiles.

There are two: one computes the states and the gates, and one, which is linear, how the states change. A gradient runs the second
one from its end to its begin. XLA starts some ten operations in each step, and divides a product of few rows badly among its
threads. In the compiled function, each thread computes all steps of some rows (`_lstm_code.py`).

The first axis of arrays is time, then come the rows. Whatever the compiled function cannot do, and derivatives of derivatives, are
as JAX writes them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._switch import is_on
from ..lowerings._lowering import Kernel
from ..lowerings._operation import operation, transposes_to
from ._registration import Native

FAMILY = "numba_lstm"
TARGET = "replicant_lstm"
MAX_UNITS = 512  # measured up to here, see benchmarks/results/2026-11-29-kernels-history.md
UNITS_AT_ONCE = 32  # two registers of AVX-512, or four of AVX2
MIN_PRODUCTS = 1 << 16  # of all steps

_FORWARD, _GRADIENT = range(2)  # as in _lstm_code.py

FUNCTION = Native(FAMILY, TARGET, "_lstm_code", ("_lstm_cells.py", "_vector_math.py"), "XLA computes the loops of LSTMs instead.")

State = tuple[Array, Array]


def forward(recurrent_kernel: Array, inputs: Array, state: State, bias: Array, mask: Array | None) -> tuple[Array, Array, Array]:
    """Compute the outputs, the carries and the gates of all steps.

    Args:
        recurrent_kernel: Of shape (units, 4 * units). The gates have Keras's order: input, forget, carry and output.
        inputs: Products of the inputs and their kernel, of shape (steps, rows, 4 * units).
        state: The output and the carry before the first step, of shape (rows, units).
        bias: Of shape (4 * units,).
        mask: False where the state stays as it is, of shape (steps, rows, 1), or None.
    """
    operands = (recurrent_kernel, inputs, *state, bias, *(() if mask is None else (mask,)))
    outputs, carries, gates = _FORWARD_LOOP.bind(*operands) if _may_bind(operands) else _forward(*operands)
    return outputs, carries, gates


def change(
    inputs: Array, state: State, recurrent_kernel: Array, gates: Array, carries: Array, carry: Array, mask: Array | None
) -> State:
    """Compute how the outputs and the carries of all steps change.

    Args:
        inputs: How the sums of the gates change, apart from the state's product, of shape (steps, rows, 4 * units).
        state: How the output and the carry before the first step change, of shape (rows, units).
        recurrent_kernel: Of shape (units, 4 * units).
        gates: Of all steps, as `forward` returns them.
        carries: The same.
        carry: The carry before the first step.
        mask: As in `forward`.
    """
    operands = (inputs, *state, recurrent_kernel, gates, carries, carry, *(() if mask is None else (mask,)))
    of_outputs, of_carries = _CHANGE_LOOP.bind(*operands) if _may_bind(operands) else _change(*operands)
    return of_outputs, of_carries


def _may_bind(operands: Any) -> bool:
    """Whether to leave it to the lowering how to compute. In a shard_map that checks what varies, JAX must see the operations."""
    return is_on(FAMILY) and not any(map(_varies, operands))


def _varies(operand: Any) -> bool:
    """Whether JAX keeps account of the axes of a mesh along which a value varies. JAX 0.12 has changed where it does."""
    kind = jax.typeof(operand)
    return bool(getattr(kind, "vma", None) or getattr(getattr(kind, "manual_axis_type", None), "varying", None))


def cell(sums: Array, carry: Array) -> tuple[State, Array]:
    """The new state of a step, and the values of its gates."""
    i, f, g, o = jnp.split(sums, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    carry = f * carry + i * g
    return (o * jnp.tanh(carry), carry), jnp.concatenate([i, f, g, o], axis=-1)


def kept(mask: Array | None, new: State, old: State) -> State:
    """The new state, or the old one where the mask is False."""
    if mask is None:
        return new
    return jnp.where(mask, new[0], old[0]), jnp.where(mask, new[1], old[1])


def _forward(
    recurrent_kernel: Array, inputs: Array, h: Array, c: Array, bias: Array, mask: Array | None = None
) -> tuple[Array, ...]:
    def step(state: State, given: Any) -> tuple[State, tuple[Array, ...]]:
        inputs, mask = given
        new, gates = cell(inputs + jnp.matmul(state[0], recurrent_kernel) + bias, state[1])
        state = kept(mask, new, state)
        return state, (*state, gates)

    return lax.scan(step, (h, c), (inputs, mask))[1]


def _change(
    inputs: Array,
    dh: Array,
    dc: Array,
    recurrent_kernel: Array,
    gates: Array,
    carries: Array,
    carry: Array,
    mask: Array | None = None,
) -> State:
    turned = recurrent_kernel.T  # in the gradient, the loop multiplies by this, and should not turn it in each step
    factors = _factors(gates, jnp.concatenate([carry[None], carries[:-1]]), carries, mask)

    def step(state: State, given: Any) -> tuple[State, State]:
        dh, dc = state
        inputs, (of_gates, of_carry, of_output, of_before) = given
        i, f, g, o = jnp.split((inputs + lax.dot_general(dh, turned, (((1,), (1,)), ((), ())))) * of_gates, 4, axis=-1)
        dc = of_carry * dc + i + f + g
        new = o + of_output * dc
        state = (new if of_before is None else new + of_before * dh), dc
        return state, state

    return lax.scan(step, (dh, dc), (inputs, factors))[1]


def _factors(gates: Array, before: Array, carries: Array, mask: Array | None) -> tuple[Array, Array, Array, Array | None]:
    """What the derivatives of a step are multiplied by: those of its gates, of its carry (twice) and of the output before it."""
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    t = jnp.tanh(carries)
    of_gates = jnp.concatenate([g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), t * o * (1 - o)], axis=-1)
    of_output = o * (1 - t * t)
    if mask is None:
        return of_gates, f, of_output, None
    return jnp.where(mask, of_gates, 0), jnp.where(mask, f, 1), jnp.where(mask, of_output, 0), jnp.where(mask, 0, jnp.ones_like(f))


def _gradient(of_outputs: Array, of_carries: Array, *others: Array) -> tuple[Array, ...]:
    """The transposition of `_change`: the gradients of `inputs`, `dh` and `dc` of those of its results."""
    of_inputs = jax.ShapeDtypeStruct(others[1].shape, others[1].dtype)
    of_state = jax.ShapeDtypeStruct(others[3].shape, others[3].dtype)
    return jax.linear_transpose(lambda *linear: _change(*linear, *others), of_inputs, of_state, of_state)((of_outputs, of_carries))


# Along which axes operands and results have rows. The mask, if there is one, is the last operand.
_FORWARD_LOOP = operation("replicant_lstm", _forward, ((None, 1, 0, 0, None, 1), (1, 1, 1)))
_CHANGE_LOOP = operation("replicant_lstm_change", _change, ((1, 0, 0, None, 1, 1, 0, 1), (1, 1)))
_GRADIENT_LOOP = operation("replicant_lstm_gradient", _gradient, ((1, 1, None, 1, 1, 0, 1), (1, 0, 0)))
transposes_to(_CHANGE_LOOP, 3, _GRADIENT_LOOP.bind)
transposes_to(_GRADIENT_LOOP, 2, _CHANGE_LOOP.bind)


def _compiled(kind: int, recurrent_kernel: Array, steps: Array, *others: Array) -> Sequence[Array]:
    batch, units = steps.shape[:2], recurrent_kernel.shape[0]
    whole, states, state = (*batch, 4 * units), (*batch, units), (batch[1], units)
    shapes = (states, states, whole) if kind == _FORWARD else (whole, state, state)
    function = jax.ffi.ffi_call(TARGET, [jax.ShapeDtypeStruct(shape, recurrent_kernel.dtype) for shape in shapes])
    return function(recurrent_kernel, steps, *others, kind=np.int64(kind))


def _compiled_forward(recurrent_kernel: Array, inputs: Array, *others: Array) -> Sequence[Array]:
    return _compiled(_FORWARD, recurrent_kernel, inputs, *others)


def _compiled_gradient(of_outputs: Array, of_carries: Array, recurrent_kernel: Array, *others: Array) -> Sequence[Array]:
    return _compiled(_GRADIENT, recurrent_kernel, of_outputs, of_carries, *others)


def _fits(recurrent_kernel: Any, states: Any, operands: Any) -> bool:
    """Whether the compiled function can compute a loop, and does so faster than XLA."""
    (units, _), (steps, rows, *_) = recurrent_kernel.shape, states.shape
    if any(str(operand.dtype) not in ("float32", "bool") for operand in operands):
        return False
    products = 4 * units * units * steps * rows
    if units % UNITS_AT_ONCE or units > MAX_UNITS or products < MIN_PRODUCTS:
        return False
    return FUNCTION.is_ready()


KERNELS = (
    Kernel(
        FAMILY,
        _FORWARD_LOOP,
        lambda *operands: _compiled_forward if _fits(operands[0], operands[1], operands) else None,
        plain=_forward,
        is_local=True,
    ),
    Kernel(
        FAMILY,
        _GRADIENT_LOOP,
        lambda *operands: _compiled_gradient if _fits(operands[2], operands[0], operands) else None,
        plain=_gradient,
        is_local=True,
    ),
)
