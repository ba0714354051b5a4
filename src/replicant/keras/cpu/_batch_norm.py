"""What Keras's BatchNormalization computes with, on a CPU: the kernel "numba_norm" (see ``kernels/functions/_norm.py``)."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ...kernels._switch import is_on
from ...kernels.functions._last_result import Last
from ...kernels.functions._norm import FAMILY, MIN_NUMBERS, moments, positive, scaled
from ._recurrent import runs_on_one_cpu

_last_normalized = Last()


def moments_of(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute what Keras calls the backend's moments: the means and the variances over some axes."""
    if not _is_used():
        return original(*args, **kwargs)
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    x, axes, keepdims = given.pop("x"), given.pop("axes"), given.pop("keepdims", False)
    axes = axes if isinstance(axes, list | tuple) else (axes,)
    plain = not any(given.values()) and all(isinstance(axis, int) for axis in axes)
    if not (plain and _fits(x) and sorted(axis % x.ndim for axis in axes) == list(range(x.ndim - 1))):
        return original(*args, **kwargs)
    mean, variance = moments(jnp.asarray(x))
    shape = (1,) * (x.ndim - 1) + x.shape[-1:] if keepdims else x.shape[-1:]
    return mean.reshape(shape), variance.reshape(shape)


def normalized(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute what Keras calls the backend's batch normalization, from means and variances of the channels."""
    if not _is_used():
        return original(*args, **kwargs)
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    x, mean, variance, axis = (given.pop(name) for name in ("x", "mean", "variance", "axis"))
    offset, scale, epsilon = (given.pop(name, default) for name, default in (("offset", None), ("scale", None), ("epsilon", 1e-3)))
    vectors = [jnp.asarray(vector) for vector in (mean, variance, offset, scale) if vector is not None]
    plain = not given and _fits(x) and axis in (-1, x.ndim - 1)
    if not (plain and all(vector.shape == x.shape[-1:] and vector.dtype == x.dtype for vector in vectors)):
        return original(*args, **kwargs)
    factor = jax.lax.rsqrt(vectors[1] + epsilon)
    factor = factor if scale is None else factor * jnp.asarray(scale)
    shift = -vectors[0] * factor
    shift = shift if offset is None else shift + jnp.asarray(offset)
    operands = jnp.asarray(x), factor, shift
    result = scaled(*operands)
    _last_normalized.keep(result, operands)
    return result


def rectified(original: Callable[..., Any], x: Any) -> Any:
    """Compute what Keras calls the backend's ReLU. Right after a normalization, their gradients are made together."""
    operands = _last_normalized.operands_of(x)
    return original(x) if operands is None else positive(x, *operands)


def _is_used() -> bool:
    """Whether the kernel is on, and may be used in what is being traced."""
    return is_on(FAMILY) and runs_on_one_cpu()


def _fits(x: Any) -> bool:
    """Whether the kernel computes the same of an array, and pays."""
    if not (getattr(x, "ndim", 0) > 1 and jnp.result_type(x) == jnp.float32):
        return False
    return all(isinstance(size, int) for size in x.shape) and math.prod(x.shape) >= MIN_NUMBERS
