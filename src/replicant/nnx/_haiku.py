"""Makes the statistics of Haiku's ``BatchNorm(cross_replica_axis="replica")`` those of all rows; see `_statistics`.

Haiku averages the replicas' means with ``jax.lax.pmean``. Here, a replica counts as often as it has rows.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

from ..errors import BackendError
from ..replicas._collectives import AXIS
from ..replicas._context import active_replica_context

_rows: ContextVar[int | None] = ContextVar("rows", default=None)  # of this replica, within a layer that averages over them


class _Instead:
    """A module in which some names mean something else."""

    def __init__(self, module: Any, **names: Any):
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def pmean(value: Any, axis_name: Any, *, axis_index_groups: Any = None) -> Any:
    """Return the mean over the replicas, as often as each has rows."""
    rows, context = _rows.get(), active_replica_context()
    if rows is None or axis_name != AXIS or axis_index_groups is not None or context is None:
        return jax.lax.pmean(value, axis_name, axis_index_groups=axis_index_groups)
    mine = value * rows if rows else jnp.zeros_like(value)  # a mean of no rows is not a number
    total, count = context.all_reduce("SUM", (mine, jnp.asarray(rows, value.dtype)))
    return total / count


def call(original: Callable[..., Any], layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer, which may average over the replicas."""
    token = _rows.set(inputs.shape[0] if layer.axis is None or 0 in layer.axis else None)
    try:
        return original(layer, inputs, *args, **kwargs)
    finally:
        _rows.reset(token)


def install(haiku: Any, batch_norm: Any) -> None:
    """Put `pmean` into Haiku's module.

    Raises:
        BackendError: If the layer does not average as expected.
    """
    original = haiku.BatchNorm.__call__
    if batch_norm.jax is not jax or not {"jax", "lax", "pmean"} <= set(original.__wrapped__.__code__.co_names):
        raise BackendError(
            f"Haiku {haiku.__version__} is not supported: haiku.BatchNorm does not average with jax.lax.pmean. Install a version "
            "that Replicant was tested with: pip install dm-haiku==0.0.17."
        )
    batch_norm.jax = _Instead(jax, lax=_Instead(jax.lax, pmean=pmean))

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return call(original, *args, **kwargs)

    haiku.BatchNorm.__call__ = wrapped


if "haiku" in sys.modules:
    install(sys.modules["haiku"], importlib.import_module("haiku._src.batch_norm"))
