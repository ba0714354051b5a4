"""The outer step of local SGD, and the sums over workers that it needs."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..cluster._world import World
from ..replicas._collectives import AXIS
from ..replicas._placement import with_token
from ..replicas._swapped_sums import install as swap_sums_of_two
from ..runtime import _in_flight


@dataclasses.dataclass(frozen=True)
class OuterStep:
    """SGD with the workers' mean change as its negative gradient.

    Args:
        learning_rate: By what the change is multiplied; 1 takes it as it is.
        momentum: The part of the last changes that is added.
        nesterov: Whether the momentum is that of Nesterov, as in DiLoCo.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0
    nesterov: bool = True

    def step(
        self, weights: Sequence[np.ndarray], changes: Sequence[np.ndarray], momentum: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the new weights and the new momentum.

        >>> outer = OuterStep(learning_rate=0.5, momentum=0.9)
        >>> [weight], [speed] = outer.step([np.zeros(1)], [np.ones(1)], [np.zeros(1)])
        >>> print(weight, speed)  # 0.5 * (1 + 0.9 * 1)
        [0.95] [1.]
        """
        rate = self.learning_rate
        if not self.momentum:
            return [(w + rate * c).astype(w.dtype) for w, c in zip(weights, changes, strict=True)], []
        speeds = [np.asarray(self.momentum * v + c, v.dtype) for v, c in zip(momentum, changes, strict=True)]
        steps = [c + self.momentum * v for c, v in zip(changes, speeds, strict=True)] if self.nesterov else speeds
        return [(w + rate * s).astype(w.dtype) for w, s in zip(weights, steps, strict=True)], speeds


class SumsOfWorkers:
    """Sums arrays of the host over the workers: one exchange for each dtype, between the first devices of the workers."""

    def __init__(self, world: World | None):
        self._world = world

    def of(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sums. All workers call this with the same shapes and dtypes."""
        if self._world is None:
            return list(arrays)
        sums: list[Any] = [None] * len(arrays)
        by_dtype: dict[np.dtype, list[int]] = {}
        for i, array in enumerate(arrays):
            by_dtype.setdefault(array.dtype, []).append(i)
        for indices in by_dtype.values():
            total, start = self._sum(np.concatenate([arrays[i].ravel() for i in indices])), 0
            for i in indices:
                sums[i] = total[start : start + arrays[i].size].reshape(arrays[i].shape)
                start += arrays[i].size
        return sums

    def _sum(self, flat: np.ndarray) -> np.ndarray:
        mesh = self._mesh
        mine = jax.device_put(flat[None], mesh.local_devices[0])
        home = NamedSharding(mesh, PartitionSpec(AXIS))
        stack = jax.make_array_from_single_device_arrays((mesh.size, flat.size), home, [mine])
        _, found = _in_flight.call(self._program, stack, bounded=True)
        return np.array(found.addressable_data(0))

    @functools.cached_property
    def _mesh(self) -> Mesh:
        assert self._world is not None, "there are several workers"
        first: dict[int, Any] = {}
        for device in sorted(jax.devices(), key=lambda device: (device.process_index, device.id)):
            first.setdefault(device.process_index, device)
        if all(device.platform == "cpu" for device in first.values()):
            swap_sums_of_two()
        return Mesh(np.array([first[rank] for rank in range(self._world.num_processes)]), (AXIS,))

    @functools.cached_property
    def _program(self) -> Any:
        cut, whole = PartitionSpec(AXIS), PartitionSpec()
        summed = jax.shard_map(lambda x: lax.psum(x[0], AXIS), mesh=self._mesh, in_specs=cut, out_specs=whole, check_vma=False)
        return jax.jit(with_token(summed))
