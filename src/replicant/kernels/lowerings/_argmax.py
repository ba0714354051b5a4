"""Computes argmax and argmin as a maximum, and the first position that has it.

JAX gives XLA one reduction of pairs, of a value and its position. XLA:CPU computes that one pair after the other as soon as there
are 32 or more along the axis. The two reductions of single numbers are vectorized and divided among the cores.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ._lowering import Kernel
from ._pooling import identity_of

FAMILY = "argmax"
_LEAST = 32  # positions along the axis; with fewer, XLA is faster
_MOST = 1 << 29  # twice as many are counted in int32
_DTYPES = ("float32", "bfloat16", "float16")  # pairs of whole numbers are as fast, and those of float64 sometimes


def first_of_the_best(
    operand: Array, reduce: Callable[..., Array], worst: float, *, index_dtype: Any, axes: tuple[int, ...]
) -> Array:
    """Return the position of the first NaN along the axis, or else that of the first of the equal best elements.

    The best element is looked for without NaNs, because XLA:CPU may compute maxima with YNNPACK, whose result with a NaN is
    another number.
    """
    (axis,) = axes
    operand = lax.optimization_barrier(operand)  # it is compared with its own maximum, so it must not be computed twice
    size, others = operand.shape[axis], [i for i in range(operand.ndim) if i != axis]
    is_nan = lax.ne(operand, operand)
    numbers = lax.select(is_nan, lax.full_like(operand, worst), operand)
    cut = jax.typeof(operand).sharding  # over a mesh with Explicit axes
    best = lax.broadcast_in_dim(reduce(numbers, (axis,)), operand.shape, others, out_sharding=cut)
    is_best = lax.eq(operand, best)
    positions = lax.broadcasted_iota(jnp.int32, operand.shape, axis, out_sharding=cut)
    after_nans = lax.select(is_best, positions + size, lax.full_like(positions, 2 * size))
    first = lax.reduce_min(lax.select(is_nan, positions, after_nans), (axis,))
    return lax.convert_element_type(lax.rem(first, lax.full_like(first, size)), index_dtype)


def _pairs(operand: Array, better: Callable[[Array, Array], Array], worst: float, *, index_dtype: Any, axes: Any) -> Array:
    """Do what JAX does."""

    def pick(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
        (value, index), (value2, index2) = one, other
        takes_value = lax.bitwise_or(better(value, value2), lax.ne(value, value))
        is_first = lax.bitwise_and(lax.eq(value, value2), lax.lt(index, index2))
        takes_index = lax.bitwise_or(takes_value, is_first)
        return lax.select(takes_value, value, value2), lax.select(takes_index, index, index2)

    positions = lax.broadcasted_iota(index_dtype, operand.shape, axes[0], out_sharding=jax.typeof(operand).sharding)
    start = identity_of(worst, operand), identity_of(0, positions)
    return lax.reduce((operand, positions), start, pick, axes)[1]


def _kernel(primitive: Any, reduce: Callable[..., Array], better: Callable[[Array, Array], Array], worst: float) -> Kernel:
    def compute(operand: Array, *, index_dtype: Any, axes: Any) -> Array:
        return first_of_the_best(operand, reduce, worst, index_dtype=index_dtype, axes=axes)

    def plain(operand: Array, *, index_dtype: Any, axes: Any) -> Array:
        return _pairs(operand, better, worst, index_dtype=index_dtype, axes=axes)

    def choose(operand: Any, *, axes: Any, **_: Any) -> Any:
        fits = operand.dtype.name in _DTYPES and len(axes) == 1 and _LEAST <= operand.shape[axes[0]] <= _MOST
        return compute if fits else None

    return Kernel(FAMILY, primitive, choose, plain)


KERNELS = (
    _kernel(lax.argmax_p, lax.reduce_max, lax.gt, -math.inf),
    _kernel(lax.argmin_p, lax.reduce_min, lax.lt, math.inf),
)
