"""Where the replicas compute: their devices, and how mirrored and per-replica arrays lie on them."""

import dataclasses
from functools import cached_property
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from ._collectives import AXIS

Device: TypeAlias = Any  # a jax.Device; JAX defines the name at run time, which type checkers refuse


@dataclasses.dataclass(frozen=True)
class Placement:
    """The devices of a strategy's replicas, one each. No devices: one replica wherever JAX puts it (the default strategy).

    fused: all replicas compute on the first device, as one vectorised program (``_fused.py``).
    """

    devices: tuple[Device, ...] = ()
    fused: bool = False

    @cached_property
    def num_replicas(self) -> int:
        """How many replicas compute in lockstep."""
        return max(1, len(self.devices))

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the replicas compute on (virtual) CPU devices."""
        platform = self.devices[0].platform if self.devices else jax.default_backend()
        return platform == "cpu"

    @cached_property
    def on_one_device(self) -> bool:
        """Whether one device computes everything."""
        return len(self.devices) < 2 or self.fused

    @cached_property
    def deadlocks(self) -> bool:
        """Whether programs wait for each other on threads of one pool: too many at once, and none can go on."""
        return self.on_cpu and not self.on_one_device

    @cached_property
    def mesh(self) -> Mesh:
        """The one-axis mesh of all replicas."""
        return Mesh(np.array(self.devices), (AXIS,))  # Mesh, not make_mesh: its axes would be Explicit

    @cached_property
    def mirrored(self) -> Sharding | None:
        """How an array that is the same on all replicas lies; None leaves it where it is."""
        if not self.devices:
            return None
        if self.on_one_device:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def stacked(self) -> Sharding | None:
        """How an array of shape (replicas, ...) lies: row i on replica i's device."""
        if self.on_one_device:
            return self.mirrored
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    def cut(self, ways: int, axis: int) -> Sharding | None:
        """How an array lies that is cut into `ways` parts along `axis`; `ways` divides the number of replicas."""
        if self.on_one_device:
            return self.mirrored
        mesh = Mesh(np.array(self.devices).reshape(ways, -1), (AXIS, "copy"))
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))

    def own(self, array: Any, sharding: Sharding | None) -> jax.Array:
        """A fresh copy of `array` that lies as `sharding` says and shares memory with nothing, so that it may be donated."""
        if sharding is None:
            return jax.numpy.array(array, copy=True)
        # device_put may alias its source, NumPy memory as well, whatever may_alias says: copy first.
        fresh = jax.numpy.array(array, copy=True) if isinstance(array, jax.Array) else np.array(array, copy=True)
        return jax.device_put(fresh, sharding)

    def constrain(self, array: jax.Array, *, stacked: bool) -> jax.Array:
        """`array` inside a traced program, made to lie as mirrored or stacked."""
        if self.on_one_device:
            return array
        return jax.lax.with_sharding_constraint(array, self.stacked if stacked else self.mirrored)
