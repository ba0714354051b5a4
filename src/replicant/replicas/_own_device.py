"""Arrays outside of programs, on a device of a strategy.

Outside of programs, JAX makes arrays on its default device, which is the first one that it has. A strategy may have others, and the
first one may have no memory left. TensorFlow's strategies, too, make variables on their own devices only.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
from jax.core import Tracer

from ._placement import Device, Placement


def on_own_device(placement: Placement) -> AbstractContextManager[Any]:
    """Let JAX make arrays on the placement's first device in this process, unless the user has chosen a default device.

    In a plan nothing happens, because the devices of plans need not exist.

    >>> import replicant, jax.numpy as jnp
    >>> with on_own_device(replicant.MirroredStrategy(["cpu:1", "cpu:2"]).placement):
    ...     print(jnp.zeros(2).devices())
    {CpuDevice(id=1)}
    """
    return nullcontext() if placement.planning is not None else _on(placement.first_local_device)


def on_device_of(strategy: Any, value: Any) -> AbstractContextManager[Any]:
    """Let JAX make the new value of a variable on its strategy's device, or without a strategy, where the old one lies.

    A step of ``fit`` puts the variables of an optimizer on the model's devices, even if the optimizer was made outside the scope.

    >>> import jax.numpy as jnp
    >>> with on_device_of(None, jax.device_put(1.0, jax.devices()[1])):
    ...     print(jnp.zeros(2).devices())
    {CpuDevice(id=1)}
    """
    if strategy is not None:
        return on_own_device(strategy.placement)
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return nullcontext()
    return _on(min(value.sharding.addressable_devices, key=lambda device: device.id, default=None))


def on_one_device(values: Any, placement: Placement) -> Any:
    """Bring the arrays in `values` to the first device if they lie on several, where JAX cannot compute with them together.

    TensorFlow copies arrays where they are used. What this process has only a part of stays where it is.
    """
    arrays = [x for x in jax.tree.leaves(values) if isinstance(x, jax.Array) and not isinstance(x, Tracer)]
    if placement.planning is not None or len({frozenset(x.sharding.device_set) for x in arrays}) < 2:
        return values

    def moved(x: Any) -> Any:
        if not isinstance(x, jax.Array) or isinstance(x, Tracer) or not (x.is_fully_addressable or x.is_fully_replicated):
            return x
        return jax.device_put(x if x.is_fully_addressable else x.addressable_data(0), placement.first_local_device)

    return jax.tree.map(moved, values)


def _on(device: Device | None) -> AbstractContextManager[Any]:
    if device is None or jax.config.jax_default_device is not None or device == jax.local_devices()[0]:
        return nullcontext()
    return jax.default_device(device)
