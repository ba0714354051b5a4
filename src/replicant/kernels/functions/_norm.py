"""The moments of channels, and channels that are scaled and shifted, with derivatives that pass over arrays as seldom as possible.

Training with BatchNormalization reads and writes arrays far more than it computes. As JAX writes it, the variance is a sum over an
array of differences, which is written and read again. Its derivative has a sum over all differences, which is zero. The gradients
of a scale and of a shift are two sums, each of which reads the array of cotangents, and a ReLU that follows writes that array.
Here, moments read their array once, both gradients are made together and look themselves where the ReLU was positive, and what is
zero is left out.

Arrays have channels along the last axis, and all others are rows. Moments, scales and shifts have the shape (channels,). Only
derivatives in forward mode are given (`custom_jvp`), and JAX makes gradients by transposing them. So derivatives of all orders and
both modes exist. Sums are made by a function that numba compiles (`_norm_loops.py`). Whatever it cannot do is as JAX writes it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive

from ..compiled._registration import Native
from ..lowerings._lowering import Kernel
from ..lowerings._operation import operation, transposes_to
from ._last_result import Last

FAMILY = "numba_norm"
TARGET = "replicant_norm"
CHANNELS_AT_ONCE = 16  # a register of AVX-512, or two of AVX2
MAX_CHANNELS = 4096
MIN_NUMBERS = 1 << 15  # of an array; with fewer, little is gained

_MOMENTS, _SUMS, _SUMS_WHERE_POSITIVE = range(3)  # as in _norm_loops.py

FUNCTION = Native(FAMILY, TARGET, "_norm_loops", ("_column_sums.py",), "XLA computes these sums instead.")


@jax.custom_jvp
def moments(x: Array) -> tuple[Array, Array]:
    """Compute the means and the variances of all channels."""
    mean, variance = _MOMENTS_OF.bind(x)
    return mean, variance


@moments.defjvp
def _change_of_moments(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x,), (dx,) = primals, tangents
    mean, variance = moments(x)
    of_rows = _rows(dx)
    # The variance does not change with the mean around which it is taken.
    return (mean, variance), (jnp.mean(of_rows, 0), 2 * jnp.mean(of_rows * (_rows(x) - mean), 0))


@jax.custom_jvp
def scaled(x: Array, scale: Array, shift: Array) -> Array:
    """Compute ``x * scale + shift``."""
    return _change(scale, shift, x)[0]


@scaled.defjvp
def _change_of_scaled(primals: Any, tangents: Any) -> tuple[Array, Array]:
    x, scale, _ = primals
    dx, dscale, dshift = tangents
    return scaled(*primals), (_rows(dx) * scale).reshape(x.shape) + _CHANGE.bind(dscale, dshift, x)[0]


@jax.custom_jvp
def positive(y: Array, *made_of: Array) -> Array:
    """Compute ``max(y, 0)`` of the array ``y = scaled(*made_of)``.

    This is a function of `y` alone. What it is made of is only used to tell where it is positive, when gradients are made.
    """
    del made_of
    return jnp.maximum(_rows(y), 0).reshape(y.shape)


@positive.defjvp
def _change_of_positive(primals: Any, tangents: Any) -> tuple[Array, Array]:
    return positive(*primals), _MASKED.bind(tangents[0], *primals[1:])[0]


def _rows(x: Array) -> Array:
    """An array with one axis of rows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # -1 would not do for no channels


def _moments(x: Array) -> Sequence[Array]:
    x = _rows(x)
    return jnp.mean(x, 0), jnp.var(x, 0)


def _change(scale: Array, shift: Array, x: Array) -> Sequence[Array]:
    return ((_rows(x) * scale + shift).reshape(x.shape),)


def _sums(gradient: Array, x: Array) -> Sequence[Array]:
    gradient = _rows(gradient)
    return jnp.sum(gradient * _rows(x), 0), jnp.sum(gradient, 0)


def _masked(values: Array, x: Array, scale: Array, shift: Array) -> Sequence[Array]:
    return (jnp.where(_rows(x) * scale + shift > 0, _rows(values), 0).reshape(x.shape),)


def _masked_sums(gradient: Array, x: Array, scale: Array, shift: Array) -> Sequence[Array]:
    return _sums(_masked(gradient, x, scale, shift)[0], x)


def _masked_change(of_scale: Array, of_shift: Array, x: Array, scale: Array, shift: Array) -> Sequence[Array]:
    return _masked(_change(of_scale, of_shift, x)[0], x, scale, shift)


def _operations(
    name: str, compute: Callable[..., Sequence[Any]], num_operands: int, num_results: int
) -> tuple[Primitive, Primitive]:
    """Make the primitive that computes a function, and the one that computes it for each of a batch of operands."""
    axes = (0,) * num_operands, (0,) * num_results
    in_batches = operation(f"replicant_{name}_of_each", jax.vmap(compute), axes)
    return operation(f"replicant_{name}", compute, None, in_batches), in_batches


_MOMENTS_OF, _MOMENTS_OF_EACH = _operations("moments", _moments, 1, 2)
_CHANGE, _CHANGE_OF_EACH = _operations("scaled", _change, 3, 1)
_SUMS_OF, _SUMS_OF_EACH = _operations("channel_sums", _sums, 2, 2)
_MASKED, _MASKED_OF_EACH = _operations("masked", _masked, 4, 1)
_MASKED_CHANGE, _MASKED_CHANGE_OF_EACH = _operations("masked_scaled", _masked_change, 5, 1)
_MASKED_SUMS, _MASKED_SUMS_OF_EACH = _operations("masked_sums", _masked_sums, 4, 2)

_last_masked = Last()


def _masked_gradient(gradient: Array, x: Array, scale: Array, shift: Array) -> Sequence[Array]:
    (result,) = _MASKED.bind(gradient, x, scale, shift)
    _last_masked.keep(result, (gradient, x, scale, shift))
    return [result]


def _sums_of(gradient: Array, x: Array) -> Sequence[Array]:
    """The sums of a gradient's products with `x`, and of the gradient. One of a ReLU need not be written for that."""
    operands = _last_masked.operands_of(gradient)
    if operands is None or operands[1] is not x:
        return _SUMS_OF.bind(gradient, x)
    return _MASKED_SUMS.bind(*operands)


transposes_to(_CHANGE, 2, _sums_of)
transposes_to(_SUMS_OF, 1, _CHANGE.bind)
transposes_to(_MASKED, 1, _masked_gradient)
transposes_to(_MASKED_CHANGE, 2, _MASKED_SUMS.bind)
transposes_to(_MASKED_SUMS, 1, _MASKED_CHANGE.bind)
transposes_to(_CHANGE_OF_EACH, 2, _SUMS_OF_EACH.bind)
transposes_to(_SUMS_OF_EACH, 1, _CHANGE_OF_EACH.bind)
transposes_to(_MASKED_OF_EACH, 1, _MASKED_OF_EACH.bind)
transposes_to(_MASKED_CHANGE_OF_EACH, 2, _MASKED_SUMS_OF_EACH.bind)
transposes_to(_MASKED_SUMS_OF_EACH, 1, _MASKED_CHANGE_OF_EACH.bind)


def _compiled(kind: int, num_batches: int, *arrays: Array) -> Sequence[Array]:
    """Call the compiled function, which takes arrays of the shape (batches, rows, channels)."""
    channels = arrays[0].shape[-1]
    given = [x.reshape(num_batches, -1, channels) for x in arrays[:2]]
    given += [vector.reshape(num_batches, channels) for vector in arrays[2:]]
    of_channels = jax.ShapeDtypeStruct((num_batches, channels), arrays[0].dtype)
    return jax.ffi.ffi_call(TARGET, [of_channels, of_channels])(*given, kind=np.int64(kind))


def _fits(num_batches: int, *arrays: Any) -> bool:
    """Whether the compiled function can make sums over arrays, and does so faster than XLA."""
    if any(str(array.dtype) != "float32" for array in arrays):
        return False
    channels, size = arrays[0].shape[-1], math.prod(arrays[0].shape)
    if channels % CHANNELS_AT_ONCE or channels > MAX_CHANNELS:
        return False
    return size >= num_batches * MIN_NUMBERS and FUNCTION.is_ready()


def _kernels(kind: int, primitives: tuple[Primitive, Primitive], compute: Callable[..., Sequence[Array]]) -> list[Kernel]:
    """The kernels for one set of arrays, and for a batch of them."""

    def of_one(*arrays: Array) -> Sequence[Array]:
        return [result[0] for result in _compiled(kind, 1, *arrays)]

    def of_each(*arrays: Array) -> Sequence[Array]:
        return _compiled(kind, arrays[0].shape[0], *arrays)

    return [
        Kernel(FAMILY, primitives[0], lambda *avals: of_one if _fits(1, *avals) else None, plain=compute, is_local=True),
        Kernel(
            FAMILY,
            primitives[1],
            lambda *avals: of_each if _fits(avals[0].shape[0], *avals) else None,
            plain=jax.vmap(compute),
            is_local=True,
        ),
    ]


KERNELS = (
    *_kernels(_MOMENTS, (_MOMENTS_OF, _MOMENTS_OF_EACH), _moments),
    *_kernels(_SUMS, (_SUMS_OF, _SUMS_OF_EACH), _sums),
    *_kernels(_SUMS_WHERE_POSITIVE, (_MASKED_SUMS, _MASKED_SUMS_OF_EACH), _masked_sums),
)
