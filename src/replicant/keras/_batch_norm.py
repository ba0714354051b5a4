"""What Keras's BatchNormalization computes with, on a CPU: the kernel "batch_norm" (see ``kernels._norm.py``)."""

import inspect
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..kernels._norm import FAMILY, MIN_NUMBERS, moments, rectified, scaled
from ..kernels._switch import is_on
from ._recurrent import runs_on_one_cpu


class _Last(threading.local):
    """The last result of `normalized` in this thread, while it exists, and what it was computed from."""

    _result: Callable[[], Any] | None = None
    _operands: tuple[jax.Array, ...] | None = None

    def keep(self, result: Any, operands: tuple[jax.Array, ...]) -> None:
        """Keep what a result was computed from, until the result is gone or another one comes."""
        self._result, self._operands = weakref.ref(result, self._forget), operands

    def operands_of(self, result: Any) -> tuple[jax.Array, ...] | None:
        """What was kept for a result. Nothing is kept any more."""
        found = self._operands if self._result is not None and self._result() is result else None
        if found is not None:
            self._result = self._operands = None
        return found

    def _forget(self, gone: Any) -> None:
        if self._result is gone:
            self._result = self._operands = None


_last = _Last()


def moments_of(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute what Keras calls the backend's moments: the means and the variances over some axes."""
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    x, axes, keepdims = given.pop("x"), given.pop("axes"), given.pop("keepdims", False)
    axes = axes if isinstance(axes, list | tuple) else (axes,)
    plain = not any(given.values()) and all(isinstance(axis, int) for axis in axes)
    if not (plain and _fits(x) and sorted(axis % x.ndim for axis in axes) == list(range(x.ndim - 1))):
        return original(*args, **kwargs)
    mean, variance = moments(_as_rows(x))
    shape = (1,) * (x.ndim - 1) + x.shape[-1:] if keepdims else x.shape[-1:]
    return mean.reshape(shape), variance.reshape(shape)


def normalized(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute what Keras calls the backend's batch normalization, from means and variances of the channels."""
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
    operands = _as_rows(x), factor[None], shift[None]
    result = scaled(*operands).reshape(x.shape)
    _last.keep(result, operands)
    return result


def rectified_linear(original: Callable[..., Any], x: Any) -> Any:
    """Compute what Keras calls the backend's ReLU. Right after a normalization, both are computed together."""
    operands = _last.operands_of(x)
    return original(x) if operands is None else rectified(*operands).reshape(x.shape)


def _as_rows(x: Any) -> jax.Array:
    """An array with one batch, all of whose axes but the last one are rows."""
    return jnp.asarray(x).reshape(1, -1, x.shape[-1])


def _fits(x: Any) -> bool:
    """Whether the kernel computes the same, and pays."""
    if not (is_on(FAMILY) and runs_on_one_cpu() and getattr(x, "ndim", 0) > 1 and jnp.result_type(x) == jnp.float32):
        return False
    return all(isinstance(size, int) for size in x.shape) and math.prod(x.shape) >= MIN_NUMBERS
