"""The moments of columns, and columns that are scaled and shifted, with derivatives that pass over arrays as seldom as possible.

Training with BatchNormalization reads and writes arrays far more than it computes. As JAX writes it, the variance is a sum over an
array of differences, which is written and read again. Its derivative has a sum over all differences, which is zero. The gradients
of a scale and of a shift are two sums, each of which reads the array of cotangents, and a ReLU that follows writes that array.
Here, moments read their array once, both gradients are made together and look themselves where the ReLU was positive, and what is
zero is left out.

Arrays have the shape (batches, rows, channels), and moments, scales and shifts (batches, channels). Only derivatives in forward
mode are given (`custom_jvp`), and JAX makes gradients by transposing them. So derivatives of all orders and both modes exist. Sums
are made by a function that numba compiles (`_direct_norm.py`). Whatever it cannot do is as JAX writes it.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ._lowering import Kernel
from ._native import Native
from ._operation import operation, transposes_to

FAMILY = "numba_norm"
TARGET = "replicant_norm"
CHANNELS_AT_ONCE = 16  # a register
MAX_CHANNELS = 4096
MIN_NUMBERS = 1 << 15  # of a batch; with fewer, little is gained

_MOMENTS, _SUMS, _SUMS_WHERE_POSITIVE = range(3)  # as in _direct_norm.py

FUNCTION = Native(FAMILY, TARGET, "_direct_norm", ("_column_sums.py",), "XLA computes these sums instead.")


@jax.custom_jvp
def moments(x: Array) -> tuple[Array, Array]:
    """Compute the means and the variances of the rows of each batch."""
    mean, variance = _MOMENTS_OF.bind(x)
    return mean, variance


@moments.defjvp
def _change_of_moments(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (dx,) = primals, tangents
    mean, variance = moments(x)
    # The variance does not change with the mean around which it is taken.
    return (mean, variance), (jnp.mean(dx, axis=1), 2 * jnp.mean(dx * (x - mean[:, None]), axis=1))


@jax.custom_jvp
def scaled(x: Array, scale: Array, shift: Array) -> Array:
    """Compute ``x * scale + shift``."""
    return _change(scale, shift, x)[0]


@scaled.defjvp
def _change_of_scaled(primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, scale, _ = primals
    dx, dscale, dshift = tangents
    return scaled(*primals), dx * scale[:, None] + _CHANGE.bind(dscale, dshift, x)[0]


@jax.custom_jvp
def rectified(x: Array, scale: Array, shift: Array) -> Array:
    """Compute ``max(x * scale + shift, 0)``."""
    return jnp.maximum(_change(scale, shift, x)[0], 0)


@rectified.defjvp
def _change_of_rectified(primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, scale, shift = primals
    dx, dscale, dshift = tangents
    of_x = _where_positive(dx * scale[:, None], x, scale, shift)
    return rectified(*primals), of_x + _RECTIFIED_CHANGE.bind(dscale, dshift, x, scale, shift)[0]


def _where_positive(values: Array, x: Array, scale: Array, shift: Array) -> Array:
    """Values where the scaled array is positive, and zeros elsewhere."""
    return jnp.where(_change(scale, shift, x)[0] > 0, values, 0)


def _moments(x: Array) -> Sequence[Array]:
    return jnp.mean(x, axis=1), jnp.var(x, axis=1)


def _change(scale: Array, shift: Array, x: Array) -> Sequence[Array]:
    return (x * scale[:, None] + shift[:, None],)


def _sums(gradient: Array, x: Array) -> Sequence[Array]:
    return jnp.sum(gradient * x, axis=1), jnp.sum(gradient, axis=1)


def _rectified_change(of_scale: Array, of_shift: Array, x: Array, scale: Array, shift: Array) -> Sequence[Array]:
    return (_where_positive(_change(of_scale, of_shift, x)[0], x, scale, shift),)


def _rectified_sums(gradient: Array, x: Array, scale: Array, shift: Array) -> Sequence[Array]:
    return _sums(_where_positive(gradient, x, scale, shift), x)


# Batches do not depend on each other.
_MOMENTS_OF = operation("replicant_moments", _moments, ((0,), (0, 0)))
_CHANGE = operation("replicant_scaled", _change, ((0, 0, 0), (0,)))
_SUMS_OF = operation("replicant_column_sums", _sums, ((0, 0), (0, 0)))
_RECTIFIED_CHANGE = operation("replicant_rectified", _rectified_change, ((0, 0, 0, 0, 0), (0,)))
_RECTIFIED_SUMS = operation("replicant_rectified_sums", _rectified_sums, ((0, 0, 0, 0), (0, 0)))
transposes_to(_CHANGE, 2, _SUMS_OF)
transposes_to(_SUMS_OF, 1, _CHANGE)
transposes_to(_RECTIFIED_CHANGE, 2, _RECTIFIED_SUMS)
transposes_to(_RECTIFIED_SUMS, 1, _RECTIFIED_CHANGE)


def _compiled(kind: int, *arrays: Array) -> Sequence[Array]:
    batches, _, channels = arrays[0].shape
    of_columns = jax.ShapeDtypeStruct((batches, channels), arrays[0].dtype)
    return jax.ffi.ffi_call(TARGET, [of_columns, of_columns])(*arrays, kind=np.int64(kind))


def _kernel(primitive: Any, kind: int, plain: Any) -> Kernel:
    def compute(*arrays: Array) -> Sequence[Array]:
        return _compiled(kind, *arrays)

    return Kernel(FAMILY, primitive, lambda *avals: compute if _fits(*avals) else None, plain=plain, is_local=True)


def _fits(*arrays: Any) -> bool:
    """Whether the compiled function can make sums over arrays, and does so faster than XLA."""
    if any(str(array.dtype) != "float32" for array in arrays):
        return False
    _, rows, channels = arrays[0].shape
    if channels == 0 or channels % CHANNELS_AT_ONCE or channels > MAX_CHANNELS or rows * channels < max(1, MIN_NUMBERS):
        return False
    return FUNCTION.is_ready()


KERNELS = (
    _kernel(_MOMENTS_OF, _MOMENTS, _moments),
    _kernel(_SUMS_OF, _SUMS, _sums),
    _kernel(_RECTIFIED_SUMS, _SUMS_WHERE_POSITIVE, _rectified_sums),
)
