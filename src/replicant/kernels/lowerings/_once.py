"""Keeps XLA from computing arrays again wherever they are used.

XLA:CPU fuses operations that seem cheap into each of their users. Where these round products and sums differently, the same array
has different numbers: the gradient of a maximum may then find no element that is equal to the maximum, and divides by zero.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array, lax

# Up to JAX 0.10, XLA:CPU removes barriers before it fuses. With JAX 0.11.2 and 0.12.0 it does not.
BARRIERS_HOLD = jax.__version_info__ >= (0, 11, 2)


def computed_once(compute: Callable[..., Array], *operands: Array) -> Array:
    """Return ``compute(*operands)``, which XLA writes to memory.

    Where barriers do not hold, it is computed under a condition that depends on data of the smallest operand, into which XLA does
    not look. That is for programs of one device: XLA might have to ask other devices for the data.
    """
    if BARRIERS_HOLD:
        return lax.optimization_barrier(compute(*operands))
    smallest = min(operands, key=lambda operand: operand.size)
    first = lax.reshape(lax.slice(smallest, [0] * smallest.ndim, [1] * smallest.ndim), ())
    always = lax.bitwise_or(lax.eq(first, first), lax.ne(first, first))
    return lax.cond(always, compute, lambda *operands: _zeros_like(compute, operands), *operands)


def _zeros_like(compute: Callable[..., Array], operands: tuple[Array, ...]) -> Array:
    """Zeros of the same shape and type, which vary over a mesh as the operands do."""
    zero: Any = sum(lax.full_like(operand, 0, shape=()) for operand in operands)
    out = jax.eval_shape(compute, *operands)
    return lax.broadcast(lax.convert_element_type(zero, out.dtype), out.shape)
