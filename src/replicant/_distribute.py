"""Bringing host data to the replicas' devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ._placement import Placement
from ._values import PerReplica, is_array
from .errors import ArgumentError
from .input._contexts import ValueContext


def place_batch(leaf: np.ndarray, sizes: tuple[int, ...], placement: Placement) -> Any:
    """One component of a batch, `sizes[r]` rows for replica r: bare for one replica, else PerReplica.

    The memory of `leaf` must not be written to afterwards: on CPU the devices may share it.
    """
    if leaf.dtype.kind in "OSUMm":  # strings and other host data stay on the host
        return leaf if len(sizes) == 1 else PerReplica(_cut(leaf, sizes))
    if len(sizes) == 1:
        return jax.device_put(leaf, placement.mirrored)
    if len(set(sizes)) == 1:
        return PerReplica.from_stacked(jax.device_put(leaf.reshape(len(sizes), sizes[0], *leaf.shape[1:]), placement.stacked))
    # Replicas of different sizes are computed side by side on every device: all need the whole of the (small) batch.
    return PerReplica([jax.device_put(part, placement.mirrored) for part in _cut(leaf, sizes)])


def place_each(values: Sequence[Any], placement: Placement) -> Any:
    """One component of the replicas' elements, as they are: bare for one replica, else PerReplica."""
    if len(values) > 1:
        return _column(list(values), placement)
    return jax.device_put(values[0], placement.mirrored) if is_array(values[0]) else values[0]


def _cut(leaf: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    ends = np.cumsum(sizes)
    return [leaf[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def distribute_values(value_fn: Callable[[ValueContext], Any], placement: Placement) -> Any:
    """PerReplica values of ``value_fn(context)``, one call per replica."""
    n = placement.num_replicas
    made = [jax.tree.flatten(value_fn(ValueContext(i, n)), is_leaf=lambda x: x is None) for i in range(n)]
    trees = [tree for _, tree in made]
    if any(tree != trees[0] for tree in trees):
        listing = ", ".join(f"replica {i}: {tree}" for i, tree in enumerate(trees))
        raise ArgumentError(f"The value function returned different structures: {listing}.")
    columns = zip(*[leaves for leaves, _ in made], strict=True)
    return jax.tree.unflatten(trees[0], [_column(list(column), placement) for column in columns])


def _column(values: list[Any], placement: Placement) -> PerReplica:
    if all(map(is_array, values)):
        arrays = [np.array(jax.device_get(v)) for v in values]
        if len(arrays) > 1 and all(a.shape == arrays[0].shape and a.dtype == arrays[0].dtype for a in arrays):
            return PerReplica.from_stacked(jax.device_put(np.stack(arrays), placement.stacked))
        return PerReplica([jax.device_put(a, placement.mirrored) for a in arrays])
    return PerReplica(values)
