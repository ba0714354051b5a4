"""cuDNN's LSTM, which Keras uses on GPUs, in the steps of a strategy.

XLA cannot cut it for several devices: in the global view of ``fit``, every device would collect the whole batch and compute all of
it. So each device is given its own rows. cuDNN's LSTM has no 16-bit floats in JAX, and Keras would only fail when the step is
lowered. There Keras's own loop is computed.
"""

import inspect
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..replicas._context import active_replica_context, active_strategy
from ..replicas._placement import Placement

_DTYPES = ("float32", "float64")  # of cuDNN's LSTM in JAX
_WEIGHTS = ("kernel", "bias")  # the ends of the names of arguments without rows


class _Step(threading.local):
    """The devices of the step that is being traced in the global view."""

    placement: Placement | None = None


_step = _Step()


@contextmanager
def in_global_view(placement: Placement) -> Iterator[None]:
    """Trace a step of ``fit`` for these devices in the ``with`` block."""
    before, _step.placement = _step.placement, placement
    try:
        yield
    finally:
        _step.placement = before


def placement_of_step() -> Placement | None:
    """Return the devices of the step that is being traced in the global view; None outside of such a trace."""
    return _step.placement


def lstm(original: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute what Keras calls the backend's LSTM, in one or in both directions, on each device's own rows.

    Raises:
        NotImplementedError: If cuDNN cannot do it. Keras then computes its own loop.
    """
    placement = _step.placement
    if placement is None and (active_replica_context() is None or not active_strategy().placement.devices):
        return original(inputs, *args, **kwargs)
    if jnp.result_type(inputs) not in _DTYPES:
        raise NotImplementedError("cuDNN's LSTM has no 16-bit floats in JAX")
    parameters = inspect.signature(original)
    if placement is None or placement.on_one_device or "inputs" not in parameters.parameters:  # older versions of Keras only raise
        return original(inputs, *args, **kwargs)
    home = placement.cut(math.gcd(inputs.shape[0], placement.num_replicas), 0)
    if home == placement.mirrored:
        return original(inputs, *args, **kwargs)
    assert isinstance(home, NamedSharding), "there are several devices"
    given = parameters.bind(inputs, *args, **kwargs).arguments
    arrays = {name: jnp.asarray(value) for name, value in given.items() if hasattr(value, "shape")}
    settings = {name: value for name, value in given.items() if name not in arrays}
    weights = {name: value for name, value in arrays.items() if name.endswith(_WEIGHTS)}
    rows = {name: value for name, value in arrays.items() if name not in weights}

    def on_device(rows: Any, weights: Any) -> Any:
        return original(**rows, **weights, **settings)

    specs = (home.spec, PartitionSpec())
    return jax.shard_map(on_device, mesh=placement.mesh, in_specs=specs, out_specs=home.spec, check_vma=False)(rows, weights)
