"""Batch statistics over all replicas, in layers of Flax that have ``axis_name="replica"``.

Flax would average the replicas' statistics with ``jax.lax.pmean``. That needs a named axis, which there is neither outside of a
step nor where the replicas have different numbers of rows, and it gives a replica without rows a share. So such layers exchange the
sums and the number of elements instead.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ..replicas._collectives import AXIS
from ..replicas._context import active_replica_context
from ..variables._recorder import current_recorder


def compute_stats(original: Callable[..., Any], x: Any, axes: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the mean and variance of `x` over `axes`, and over the replicas if the layer asks for that."""
    if kwargs.get("axis_name") != AXIS:
        return original(x, axes, dtype, *args, **kwargs)
    context = active_replica_context()
    if context is None or current_recorder() is None or context.num_replicas_in_sync == 1:
        return original(x, axes, dtype, *args, **kwargs | {"axis_name": None})
    wide = jnp.promote_types(jnp.result_type(x) if dtype is None else dtype, jnp.float32)
    x = jnp.asarray(x, wide)
    axes = tuple(axis % x.ndim for axis in ((axes,) if isinstance(axes, int) else axes))
    mask = kwargs.get("mask")
    counted = jnp.broadcast_to(jnp.asarray(1 if mask is None else mask, wide), x.shape)
    square = (lambda v: jnp.real(v) ** 2 + jnp.imag(v) ** 2) if jnp.iscomplexobj(x) else jnp.square
    total, count = context.all_reduce("SUM", ((x * counted).sum(axes), counted.sum(axes)))
    mean = total / count if kwargs.get("use_mean", True) else jnp.zeros_like(total)
    (spread,) = context.all_reduce("SUM", ((square(x - jnp.expand_dims(mean, axes)) * counted).sum(axes),))
    return mean, spread / count
