"""Computes products of matrices with a function that numba compiles, where this is faster than XLA's own.

The function reads the operands with strides, so that neither a sum over several axes, nor gradients of weights, nor the heads of
attention need copies. Exported programs never contain a call of it (see `Kernel.is_local`).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import Array, lax

from ..lowerings._lowering import Kernel
from . import _registers
from ._registration import Native

FAMILY = "numba_dot"
TARGET = "replicant_dot"
COLUMNS_AT_ONCE = 16  # a register of AVX-512, or two of AVX2
MIN_SIDE = 8
MIN_ROWS = 512  # if they are read number by number
MIN_PRODUCTS = 1 << 18  # of all matrices of a batch, see docs/kernels.md
MAX_BATCH_AXES = 2

FUNCTION = Native(FAMILY, TARGET, "_dot_loops", (), "XLA computes the products instead.")

Axes = tuple[int, ...]


def _strides(shape: Sequence[int]) -> list[int]:
    """The strides of a float32 array in bytes."""
    return [4 * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _joined(shape: Sequence[int], axes: Axes) -> int | None:
    """The stride of several axes as one, or None if they do not lie behind each other."""
    strides = _strides(shape)
    for outer, inner in itertools.pairwise(axes):
        if strides[outer] != strides[inner] * shape[inner]:
            return None
    return strides[axes[-1]]


def _numbers(lhs: Any, rhs: Any, dimension_numbers: Any) -> dict[str, int] | None:
    """What the function is told: counts, and strides in bytes. None if it cannot compute this."""
    (lhs_sums, rhs_sums), (lhs_batch, rhs_batch) = dimension_numbers
    lhs_free, rhs_free = (
        tuple(axis for axis in range(x.ndim) if axis not in (*batch, *sums))
        for x, batch, sums in ((lhs, lhs_batch, lhs_sums), (rhs, rhs_batch, rhs_sums))
    )
    if len(lhs_batch) > MAX_BATCH_AXES or not (lhs_sums and lhs_free and rhs_free):
        return None
    batch = [1, 1, *(lhs.shape[axis] for axis in lhs_batch)][-2:]
    lhs_steps = [0, 0, *(_strides(lhs.shape)[axis] for axis in lhs_batch)][-2:]
    rhs_steps = [0, 0, *(_strides(rhs.shape)[axis] for axis in rhs_batch)][-2:]
    numbers = {
        "batch": math.prod(batch),
        "batch_inner": batch[1],
        "columns": math.prod(rhs.shape[axis] for axis in rhs_free),
        "depth": math.prod(lhs.shape[axis] for axis in lhs_sums),
        "lhs_depth": _joined(lhs.shape, lhs_sums),
        "lhs_inner": lhs_steps[1],
        "lhs_outer": lhs_steps[0],
        "lhs_rows": _joined(lhs.shape, lhs_free),
        "rhs_columns": _joined(rhs.shape, rhs_free),
        "rhs_depth": _joined(rhs.shape, rhs_sums),
        "rhs_inner": rhs_steps[1],
        "rhs_outer": rhs_steps[0],
        "rows": math.prod(lhs.shape[axis] for axis in lhs_free),
    }
    return numbers if None not in numbers.values() else None  # pyright: ignore[reportReturnType]


def turned_product(lhs: Array, rhs: Array, *, dimension_numbers: Any, **_: Any) -> Array:
    """The same as the transposition of another product: JAX writes gradients of weights like this, and transposes the result."""
    (lhs_sums, rhs_sums), no_batch = dimension_numbers
    out = product(rhs, lhs, dimension_numbers=((rhs_sums, lhs_sums), no_batch))
    num_lhs = lhs.ndim - len(lhs_sums)
    return lax.transpose(out, (*range(out.ndim - num_lhs, out.ndim), *range(out.ndim - num_lhs)))


def product(lhs: Array, rhs: Array, *, dimension_numbers: Any, **_: Any) -> Array:
    """Compute what ``lax.dot_general`` computes."""
    numbers = _numbers(lhs, rhs, dimension_numbers)
    assert numbers is not None, "_choose has asked"
    shape = jax.eval_shape(lambda a, b: lax.dot_general(a, b, dimension_numbers), lhs, rhs).shape
    function = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(shape, lhs.dtype))
    return function(lhs, rhs, **{name: np.int64(number) for name, number in numbers.items()})


def _choose(lhs: Any, rhs: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    if lhs.dtype != "float32" or rhs.dtype != "float32" or params.get("preferred_element_type") not in (None, lhs.dtype):
        return None
    if params.get("out_sharding") is not None:
        return None
    sums, batch = dimension_numbers
    compute = product
    if not batch[0] and all(tuple(axes) == tuple(range(len(axes))) for axes in sums):
        if _registers.width() == 8:  # then tiles have too few rows where those lie side by side, and `dot` is faster
            return None
        compute, lhs, rhs, dimension_numbers = turned_product, rhs, lhs, ((sums[1], sums[0]), batch)
    numbers = _numbers(lhs, rhs, dimension_numbers)
    if numbers is None or not _is_worth_it(numbers) or 4 not in (numbers["rhs_columns"], numbers["rhs_depth"]):
        return None
    return compute if FUNCTION.is_ready() else None


def _is_worth_it(numbers: dict[str, int]) -> bool:
    sides = numbers["rows"], numbers["depth"], numbers["columns"]
    if min(sides) < MIN_SIDE or numbers["columns"] % COLUMNS_AT_ONCE:
        return False
    if numbers["batch"] == 1 and numbers["lhs_depth"] == 4 and numbers["rows"] < MIN_ROWS:
        return False
    return math.prod(sides) * numbers["batch"] >= MIN_PRODUCTS


KERNEL = Kernel(FAMILY, lax.dot_general_p, _choose, is_local=True)
