"""A model's variables, as one replica reads them in micro-batches: gathered from slices anew for each of them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ...replicas._collectives import AXIS, in_use
from ...replicas._model_axis import ModelCut
from ...replicas._placement import Placement
from ...tracing.gradients._gathered_variable import gathered_p


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a variable lies on the devices.

    Args:
        shape: The shape of the whole variable.
        dtype: Its dtype.
        num_replicas: The number of replicas.
        axis: The axis along which it is cut over the replicas; None if each has the whole.
        cut: How it is cut over the devices of each replica; None without a model axis.
    """

    shape: tuple[int, ...]
    dtype: Any
    num_replicas: int
    axis: int | None
    cut: ModelCut | None

    @property
    def spec(self) -> PartitionSpec:
        """How it is cut over the replicas."""
        return PartitionSpec() if self.axis is None else PartitionSpec(*[None] * self.axis, AXIS)

    def zeros(self) -> jax.Array:
        """Return zeros of the shape and dtype of the whole variable."""
        return jnp.zeros(self.shape, self.dtype)

    def start_of_sum(self) -> jax.Array:
        """Return zeros of at least 32 bits to add gradients to, which a replica's devices share as they share the variable."""
        return self._in_use(jnp.zeros(self.shape, jnp.promote_types(self.dtype, jnp.float32)))

    def whole(self, part: Any, shift: Any = None) -> Any:
        """Return the whole variable, as a replica computes with it. It is differentiable with respect to `shift`."""
        if self.axis is None:
            return self._in_use(part if shift is None else shift)
        shift = self.zeros() if shift is None else shift
        return gathered_p.bind(part, shift, axis=self.axis, cut=self.cut)

    def tied(self, part: Any, row: Any) -> Any:
        """Return the slice so that XLA gathers it for each micro-batch, and not before the loop over all of them."""
        return part if self.axis is None else jax.lax.optimization_barrier((part, row))[0]

    def slice_of(self, value: Any, replica: Any) -> Any:
        """Return a replica's slice of a value that all replicas have."""
        if self.axis is None:
            return value
        size = self.shape[self.axis] // self.num_replicas
        return jax.lax.dynamic_slice_in_dim(value, replica * size, size, self.axis)

    def _in_use(self, value: Any) -> Any:
        return value if self.cut is None or self.cut.use is None else in_use(value, self.cut)


def layouts_of(placement: Placement, variables: Sequence[Any], values: Sequence[Any]) -> list[Layout]:
    """Return how each of a model's variables lies on the devices. `values` are those of all replicas together."""
    found = []
    for variable, value in zip(variables, values, strict=True):
        shape, dtype = tuple(value.shape), value.dtype
        axis, cut = placement.slice_axis(shape, dtype, slot=False), placement.model_cut(variable.path, shape, dtype)
        found.append(Layout(shape, dtype, placement.num_replicas, axis, cut))
    return found
