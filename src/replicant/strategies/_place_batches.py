"""Copies host data to the replicas' devices."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from ..cluster.meeting._claims import table_of
from ..errors import ArgumentError, ArgumentTypeError, DatasetError
from ..input._contexts import ValueContext
from ..replicas._placement import Placement, host_copy
from ..replicas._quick_put import put_now, quick_put
from ..replicas._values import PerReplica, is_array
from ..runtime._jax_dtypes import in_jax_dtypes
from ..runtime._own_memory import own

_ON_HOST = "OSUMm"  # kinds of dtypes that no device can hold
_Spec = tuple[str, tuple[int, ...]]  # dtype and shape


def place_batch(leaf: np.ndarray, sizes: tuple[int, ...], placement: Placement) -> Any:
    """Place one component of a batch, with `sizes[r]` rows for replica r.

    Do not write to the memory of `leaf` afterwards, because CPU devices may share it.

    Returns:
        A PerReplica, or the bare value for one replica.
    """
    if leaf.dtype.kind in _ON_HOST:  # strings and other such data stay on the host
        return leaf if len(sizes) == 1 else PerReplica(_cut(leaf, sizes))
    if len(sizes) == 1:
        return _put(leaf, placement.mirrored)
    if len(set(sizes)) == 1:
        return PerReplica.from_stacked(_put(leaf.reshape(len(sizes), sizes[0], *leaf.shape[1:]), placement.stacked))
    # Every device computes replicas of different sizes side by side, so it needs the whole (small) batch.
    return PerReplica([jax.device_put(part, placement.mirrored) for part in _cut(leaf, sizes)])


def _put(array: np.ndarray, sharding: Sharding | None) -> jax.Array:
    return jax.device_put(array) if sharding is None else put_now(array, sharding)


class PlacesAtOnce:
    """Places all components of a batch on one device, in a quarter of the time that it takes one by one.

    Args:
        placement: The device.
    """

    def __init__(self, placement: Placement):
        self._put = None if placement.mirrored is None else quick_put(placement.mirrored)
        self._num_replicas = placement.num_replicas

    def __call__(self, parts: Sequence[tuple[Any, ...]]) -> list[Any] | None:
        """Return the components of a batch as `place_batch` does, given its arguments; None if that must be done one by one."""
        if self._put is None or not all(self._fits(leaf, sizes) for leaf, sizes in parts):
            return None
        n = self._num_replicas
        arrays = [leaf if n == 1 else leaf.reshape(n, sizes[0], *leaf.shape[1:]) for leaf, sizes in parts]
        placed = [array for x in arrays for array in self._put([x], x.shape, x.dtype)]
        return placed if n == 1 else [PerReplica.from_stacked(array) for array in placed]

    def run(self, columns: Sequence[np.ndarray], count: int, sizes: tuple[int, ...]) -> Sequence[Sequence[Any]] | None:
        """Return the components of each of `count` batches that were read at once; None if that must be done one by one.

        Args:
            columns: For each component, the rows of all batches.
            count: The number of batches.
            sizes: The numbers of rows that each batch has for the replicas.
        """
        if self._put is None or not all(self._fits(column, sizes) for column in columns):
            return None
        n = self._num_replicas
        shape = (count, sizes[0]) if n == 1 else (count, n, sizes[0])
        stacks = [column.reshape(*shape, *column.shape[1:]) for column in columns]
        placed = list(zip(*[self._put(stack, stack.shape[1:], stack.dtype) for stack in stacks], strict=True))
        return placed if n == 1 else [[PerReplica.from_stacked(array) for array in batch] for batch in placed]

    def _fits(self, array: np.ndarray, sizes: tuple[int, ...]) -> bool:
        """Whether a component is cut evenly, and of a dtype that needs no care."""
        even, dtype = self._num_replicas == 1 or len(set(sizes)) == 1, array.dtype
        return even and dtype.kind in "biufc"


def place_each(values: Sequence[Any], placement: Placement) -> Any:
    """Place one component of the replicas' elements without cutting it: a PerReplica, or the bare value for one replica."""
    if len(values) > 1:
        return _column(list(values), placement)
    if not is_array(values[0]):
        return values[0]
    return (
        _put(values[0], placement.mirrored) if isinstance(values[0], np.ndarray) else jax.device_put(values[0], placement.mirrored)
    )


def _cut(leaf: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    ends = np.cumsum(sizes)
    return [leaf[end - size : end] for end, size in zip(ends, sizes, strict=True)]


class WorkersPlaces:
    """Brings batches to the devices of several workers.

    Args:
        placement: The devices of the replicas.
    """

    def __init__(self, placement: Placement):
        assert placement.world is not None, "only used where there are several workers"
        self._placement = placement
        self._world = placement.world

    def whole(self, leaf: np.ndarray, sizes: tuple[int, ...]) -> Any:
        """Place one component of a batch that all workers have, with `sizes[r]` rows for replica r."""
        placement = self._placement
        if leaf.dtype.kind in _ON_HOST:
            return PerReplica(_cut(leaf, sizes))
        parts = _cut(leaf, sizes)
        if len(set(sizes)) == 1:
            return PerReplica.from_stacked(placement.stack_local([parts[i] for i in placement.local_ids]))
        return PerReplica([placement.put(part, placement.mirrored) for part in parts])

    def form(self, columns: Sequence[Sequence[Any]]) -> list[list[list[Any]]]:
        """Return the dtype and shape of each part, for the other workers."""
        return [[[str(part.dtype), list(part.shape)] for part in map(_on_host, column)] for column in columns]

    def together(self, columns: Sequence[Sequence[Any]], forms: Sequence[Any] | None = None) -> list[Any]:
        """Place components of which each worker has the parts of its own replicas. All workers must call this in each step.

        Args:
            columns: For each component, the parts of this worker's replicas.
            forms: What `form` has returned on each worker; None to exchange that first.

        Raises:
            DatasetError: If the workers' parts do not belong together.
        """
        local = [[_on_host(part) for part in column] for column in columns]
        answers = forms or [json.loads(text) for text in self._world.exchange("input", json.dumps(self.form(columns)))]
        if len({len(answer) for answer in answers}) > 1:
            rows = {self._world.name_of(rank): f"{len(answer)} component(s)" for rank, answer in enumerate(answers)}
            raise DatasetError(table_of("The workers' datasets yield different structures:", rows))
        specs = [
            [(dtype, tuple(shape)) for answer in answers for dtype, shape in answer[position]] for position in range(len(columns))
        ]
        return [self._column(parts, spec) for parts, spec in zip(local, specs, strict=True)]

    def _column(self, parts: list[np.ndarray], specs: list[_Spec]) -> PerReplica:
        placement = self._placement
        if len({(dtype, len(shape)) for dtype, shape in specs}) > 1 and not any(part.dtype.kind in _ON_HOST for part in parts):
            rows = {f"replica {i}": f"{dtype}{list(shape)}" for i, (dtype, shape) in enumerate(specs)}
            raise DatasetError(table_of("The workers' batches have different dtypes or ranks:", rows))
        if any(part.dtype.kind in _ON_HOST for part in parts):  # the strings of the other workers stay with them
            mine = dict(zip(placement.local_ids, parts, strict=True))
            return PerReplica([mine.get(i, np.full(shape, None, object)) for i, (_, shape) in enumerate(specs)])
        shapes = [shape for _, shape in specs]
        if len(set(shapes)) == 1:
            return PerReplica.from_stacked(placement.stack_local(parts))
        # Every device computes replicas of different sizes side by side, so it needs the whole (small) batch.
        widest = tuple(map(max, zip(*shapes, strict=True)))
        padded = [np.pad(part, [(0, most - size) for size, most in zip(part.shape, widest, strict=True)]) for part in parts]
        every = host_copy(placement.stack_local(padded))
        rows = [every[i][tuple(map(slice, shape))] for i, shape in enumerate(shapes)]
        return PerReplica([placement.put(row, placement.mirrored) for row in rows])

    def states(self, state: Any) -> list[Any]:
        """Return the positions of all workers in their data, in the order of the workers. They must be of JSON's types."""
        return [json.loads(text) for text in self._world.exchange("positions", json.dumps(state))]

    def objects(self, column: Sequence[Any]) -> PerReplica:
        """Exchange the Python objects of this worker's replicas for those of all replicas.

        Raises:
            ArgumentTypeError: If an object cannot be sent to the other workers.
        """
        for value in column:
            if not isinstance(value, bool | int | float | str | None):
                raise ArgumentTypeError(
                    f"A value of type {type(value).__name__} cannot be sent to the other workers. Return arrays, numbers, strings "
                    "or None."
                )
        answers = self._world.exchange("values", json.dumps(list(column)))
        return PerReplica([value for answer in answers for value in json.loads(answer)])


def _on_host(part: Any) -> np.ndarray:
    return np.asarray(part, dtype=object if isinstance(part, str | bytes) else None)


def distribute_values(value_fn: Callable[[ValueContext], Any], placement: Placement) -> Any:
    """Return PerReplica values, made by one call of ``value_fn(context)`` for each replica of this worker."""
    n = placement.num_replicas
    made = [jax.tree.flatten(value_fn(ValueContext(i, n)), is_leaf=lambda x: x is None) for i in placement.local_ids]
    trees = [tree for _, tree in made]
    if any(tree != trees[0] for tree in trees):
        listing = ", ".join(f"replica {i}: {tree}" for i, tree in zip(placement.local_ids, trees, strict=True))
        raise ArgumentError(f"value_fn must return the same structure for every replica; got {listing}.")
    columns = zip(*[_in_jax_dtypes(i, *each) for i, each in zip(placement.local_ids, made, strict=True)], strict=True)
    return jax.tree.unflatten(trees[0], [_column(list(column), placement) for column in columns])


def _in_jax_dtypes(replica: int, leaves: list[Any], tree: Any) -> list[Any]:
    def names() -> list[str]:
        paths = jax.tree_util.tree_flatten_with_path(tree.unflatten(range(len(leaves))))[0]
        return [f"value_fn's value{jax.tree_util.keystr(path)} for replica {replica}" for path, _ in paths]

    return in_jax_dtypes(leaves, names)


def _column(values: list[Any], placement: Placement) -> PerReplica:
    if placement.world is not None:
        places = WorkersPlaces(placement)
        return places.together([[own(value) for value in values]])[0] if all(map(is_array, values)) else places.objects(values)
    if all(map(is_array, values)):
        arrays = [np.array(jax.device_get(v)) for v in values]
        if len(arrays) > 1 and all(a.shape == arrays[0].shape and a.dtype == arrays[0].dtype for a in arrays):
            return PerReplica.from_stacked(jax.device_put(np.stack(arrays), placement.stacked))
        return PerReplica([jax.device_put(a, placement.mirrored) for a in arrays])
    return PerReplica(values)
