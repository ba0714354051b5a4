"""Keras's attention on CPUs, which the kernel "attention" computes where its scores are large (see ``kernels/functions``)."""

import inspect
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp

from ...kernels._switch import is_on
from ...kernels.functions._attention import FAMILY, attention
from ._recurrent import on_cpus

MIN_SCORES = 1 << 19  # elements; with fewer, nothing is gained. This and the next were measured, see docs/kernels.md
PARTS = ((512, 4), (128, 2))  # with so many positions, causal attention is computed in so many parts


def attend(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Compute what Keras calls the backend's attention: outputs of shape (batch, positions, heads, features)."""
    given = inspect.signature(original).bind(*args, **kwargs).arguments
    query, key, value, mask, scale = (given.pop(name, None) for name in ("query", "key", "value", "mask", "scale"))
    is_causal = given.pop("is_causal", False)
    plain = all(option is None or option is False for option in given.values()) and isinstance(scale, int | float | None)
    if not (plain and is_on(FAMILY) and on_cpus() and _fits(query, key, value, mask)):
        return original(*args, **kwargs)
    arrays = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    mask = None if mask is None else jnp.asarray(mask, bool)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if not is_causal:
        return attention(*arrays, mask, scale)
    if mask is None and query.shape[1] == key.shape[1]:
        return _in_parts(*arrays, scale)
    causal = _causal(query.shape[1], key.shape[1])
    return attention(*arrays, causal if mask is None else causal & mask, scale)


def _fits(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Whether the kernel computes the same, and pays: for 32 bits, values like keys, and a mask for each pair of positions."""
    if not all(getattr(x, "ndim", 0) == 4 and jnp.result_type(x) == jnp.float32 for x in (query, key, value)):
        return False
    if not all(isinstance(size, int) for x in (query, key, value) for size in x.shape):  # jax.export also has symbolic sizes
        return False
    if mask is not None and getattr(mask, "ndim", 0) != 4:
        return False
    batch, positions, heads, features = query.shape
    if key.shape != value.shape or key.shape[:1] + key.shape[2:] != (batch, heads, features):
        return False
    return batch * heads * positions * key.shape[1] >= MIN_SCORES


def _causal(positions: int, others: int, first: int = 0) -> jax.Array:
    """The mask of positions that attend to others up to themselves. `first` is the place of the first one."""
    return jnp.tril(jnp.ones((1, 1, positions, others), bool), first)


def _in_parts(query: jax.Array, key: jax.Array, value: jax.Array, scale: float) -> jax.Array:
    """Attend to no later positions: a part of the positions does not even look at what comes after it."""
    positions = query.shape[1]
    parts = next((parts for least, parts in PARTS if positions >= least), 1)
    bounds = [positions * part // parts for part in range(parts + 1)]
    outs = [
        attention(query[:, begin:end], key[:, :end], value[:, :end], _causal(end - begin, end, begin), scale)
        for begin, end in pairwise(bounds)
    ]
    return jnp.concatenate(outs, axis=1)
