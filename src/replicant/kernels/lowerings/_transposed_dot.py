"""Computes products of matrices whose first axes meet in a form that XLA:CPU is fast at.

Gradients of weights are such products, and two of the gradients of attention: ``out[m, n] = sum over k of lhs[k, m] * rhs[k, n]``.
XLA:CPU computes them as they are written, and that has two costs. A result that is higher than it is wide takes up to twice as long
as its transpose. And through a batch of matrices, XLA walks column by column: it is two to three times as fast once the smaller
operand has been turned. A sum over several axes, such as those of sequences and positions, is written as one over a single axis:
XLA copies the operands otherwise, together with whatever it has fused with them.

A narrow result, as the gradient of the weights that make a few classes, is computed element by element. Written as the sum of the
rows' outer products, it is computed with vectors along its wide side, in a fifth of the time.

The barriers keep XLA from undoing this: it takes a transposition into the product that it belongs to.
"""

import math
from typing import Any

from jax import Array, lax

from ._lowering import PRODUCTS, Kernel

# Measured, see docs/kernels.md.
NARROW = range(2, 33)  # columns of a result that is computed as a sum of outer products, or rows of one,
NARROW_OF_BATCH = range(2, 5)  # and of those of a batch,
NARROW_PRODUCTS = 1 << 16  # from so many multiplications on
MIN_WIDTH = 8
MIN_PRODUCTS = 1 << 20  # multiplications, of all matrices of a batch
HIGH_ROWS, HIGH_WIDTH = 1024, 64  # a sum over so many rows is turned if it is twice as high as wide, and at least so wide
SPLIT_ROWS = 2048  # so many rows are summed in two parts, one for each of two cores,
SPLIT_PRODUCTS = 1 << 25  # if there is so much to do,
SPLIT_RESULT = range(8192, 160_000)  # for a result of so many elements

Axes = tuple[int, ...]


def product(lhs: Array, rhs: Array, *, dimension_numbers: Any, **params: Any) -> Array:
    """Compute what ``lax.dot_general`` computes. The last axis of neither operand may be contracted."""
    (lhs_sums, rhs_sums), (lhs_batch, rhs_batch) = dimension_numbers
    lhs, batch, lhs_free = _ordered(lhs, lhs_batch, lhs_sums)
    rhs, _, rhs_free = _ordered(rhs, rhs_batch, rhs_sums)
    rows, high, wide = lhs.shape[-2], lhs.shape[-1], rhs.shape[-1]
    if _is_narrow(math.prod(batch), rows, high, wide):
        out = _of_narrow(lhs, rhs)
    else:
        out = (_of_batch if batch else _of_two)(lhs, rhs, params)
    return out.reshape(*batch, *lhs_free, *rhs_free)


def _ordered(operand: Array, batch: Axes, sums: Axes) -> tuple[Array, Axes, Axes]:
    """An operand of shape (batch, K, M), or (K, M) without a batch, and the sizes of its axes of the batch and of the free ones."""
    free = tuple(axis for axis in range(operand.ndim) if axis not in (*batch, *sums))
    first, last = (tuple(operand.shape[axis] for axis in axes) for axes in (batch, free))
    operand = lax.transpose(operand, (*batch, *sums, *free))
    flat = (math.prod(first),) if batch else ()
    return operand.reshape(*flat, math.prod(operand.shape[len(batch) : -len(free)]), math.prod(last)), first, last


def _of_narrow(lhs: Array, rhs: Array) -> Array:
    """Add up outer products: from operands of shapes (..., K, M) and (..., K, N), of which one is narrow."""
    is_high = lhs.shape[-1] > rhs.shape[-1]
    narrow, other = lax.optimization_barrier((rhs, lhs) if is_high else (lhs, rhs))  # or what makes them is made for each product
    *batch, rows, few = narrow.shape
    shape = (*batch, rows, few, other.shape[-1])
    axes = tuple(range(len(batch) + 1))
    columns = lax.broadcast_in_dim(narrow, shape, (*axes, len(axes)))
    out = lax.reduce_sum(columns * lax.broadcast_in_dim(other, shape, (*axes, len(axes) + 1)), (len(batch),))
    return lax.transpose(out, (*range(len(batch)), len(batch) + 1, len(batch))) if is_high else out


def _of_batch(lhs: Array, rhs: Array, params: Any) -> Array:
    """Turn the narrower of two operands of shapes (batch, K, M) and (batch, K, N)."""
    dimensions = (((2,), (1,)), ((0,), (0,)))
    if lhs.shape[2] <= rhs.shape[2]:
        return lax.dot_general(_turned(lhs), rhs, dimensions, **params)
    return _swapped(lax.dot_general(_turned(rhs), lhs, dimensions, **params))


def _of_two(lhs: Array, rhs: Array, params: Any) -> Array:
    """Compute the result, or its transpose, whichever is wide: from operands of shapes (K, M) and (K, N)."""
    rows, high, wide = *lhs.shape, rhs.shape[1]
    is_high = _is_high(rows, high, wide)
    first, second = (rhs, lhs) if is_high else (lhs, rhs)
    if _is_long(rows, high * wide):
        first, second = (operand.reshape(2, rows // 2, -1) for operand in (first, second))
        out = lax.reduce_sum(lax.dot_general(first, second, (((1,), (1,)), ((0,), (0,))), **params), (0,))
    else:
        out = lax.dot_general(first, second, (((0,), (0,)), ((), ())), **params)
    return _swapped(out) if is_high else out


def _is_narrow(batch: int, rows: int, high: int, wide: int) -> bool:
    few = NARROW if batch == 1 else NARROW_OF_BATCH
    return min(high, wide) in few and rows > 1 and batch * rows * high * wide >= NARROW_PRODUCTS


def _is_high(rows: int, high: int, wide: int) -> bool:
    return rows >= HIGH_ROWS and high >= 2 * wide and wide >= HIGH_WIDTH


def _is_long(rows: int, result: int) -> bool:
    return rows % 2 == 0 and rows >= SPLIT_ROWS and result in SPLIT_RESULT and rows * result >= SPLIT_PRODUCTS


def _turned(operand: Array) -> Array:
    return lax.optimization_barrier(lax.transpose(operand, (0, 2, 1)))


def _swapped(result: Array) -> Array:
    *batch, last, first = range(result.ndim)
    return lax.transpose(lax.optimization_barrier(result), (*batch, first, last))


def _choose(lhs: Any, rhs: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    (lhs_sums, rhs_sums), (lhs_batch, _) = dimension_numbers
    if lhs.dtype != "float32" or rhs.dtype != "float32" or params.get("preferred_element_type") not in (None, lhs.dtype):
        return None
    if not lhs_sums or params.get("out_sharding") is not None:
        return None
    rows, batch = (math.prod(lhs.shape[axis] for axis in axes) for axes in (lhs_sums, lhs_batch))
    high, wide = lhs.size // (rows * batch), rhs.size // (rows * batch)
    if not _is_narrow(batch, rows, high, wide):
        if min(rows, high, wide) < MIN_WIDTH or rows * high * wide * batch < MIN_PRODUCTS:
            return None
        if not lhs_batch and not _pays(len(lhs_sums), rows, high, wide):
            return None
    if _last_is_free(lhs, lhs_sums, lhs_batch) and _last_is_free(rhs, rhs_sums, dimension_numbers[1][1]):
        return product
    return None


def _pays(sums: int, rows: int, high: int, wide: int) -> bool:
    """Whether a product of two matrices is better written otherwise."""
    return sums > 1 or _is_high(rows, high, wide) or _is_long(rows, high * wide)


def _last_is_free(operand: Any, sums: Axes, batch: Axes) -> bool:
    return operand.ndim - 1 not in (*sums, *batch)


KERNEL = Kernel(PRODUCTS, lax.dot_general_p, _choose, is_local=True)
