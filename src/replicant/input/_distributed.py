"""Distributed datasets: every global batch is cut for the replicas, and placed on their devices ahead of time.

The strategy gives a `Topology` and a ``place`` function, and is itself unknown here.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicant._topology import Topology
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError

from ._background import END, Background
from ._dataset import Dataset
from ._graph import Cursor, Node, State
from ._iterator import ElementIterator
from ._options import InputOptions, InputReplicationMode
from ._rebatch import static_chunk_size, worker_chunk
from ._structure import PerReplicaSpec, TensorSpec, component_names, flatten, map_leaves

# Receives this worker's rows of one component in replica order, and how many of them each of its replicas gets. With
# one replica in all, the component comes as it is; the sizes are then its leading size, or () for a scalar. Returns
# what the user sees.
Place = Callable[[np.ndarray, tuple[int, ...]], Any]

_MIN_AHEAD = 2


class DistributedDataset:
    """A dataset whose elements, global batches, are split over the replicas.

    Args:
        dataset: yields global batches; every component has the batch as its leading dimension.
        topology: workers and replicas.
        place: makes what the user sees from the rows of this worker's replicas.
        options: of the distribution.

    Raises:
        ArgumentTypeError: not a `Dataset`.
        ArgumentError: an option that only works for input functions.
        DatasetError: a scalar component, with more than one replica.
        ElementError: components with different batch sizes.

    >>> def place(rows, sizes):
    ...     return [rows[sum(sizes[:i]) : sum(sizes[: i + 1])].tolist() for i in range(len(sizes))]
    >>> list(DistributedDataset(Dataset.range(7).batch(4), Topology(replicas_per_worker=2), place))
    [[[0, 1], [2, 3]], [[4, 5], [6]]]
    """

    def __init__(self, dataset: Dataset, topology: Topology, place: Place, options: InputOptions | None = None) -> None:
        if not isinstance(dataset, Dataset):
            raise ArgumentTypeError(
                f"Only a replicant.data.Dataset can be distributed. Received: {type(dataset).__name__}. "
                "Make one with `Dataset.from_tensor_slices(arrays).batch(global_batch_size)`."
            )
        options = options or InputOptions()
        if options.experimental_replication_mode is not InputReplicationMode.PER_WORKER:
            raise ArgumentError(
                "InputReplicationMode.PER_REPLICA only works with `distribute_datasets_from_function`. "
                "Leave experimental_replication_mode at PER_WORKER."
            )
        self._dataset, self._topology, self._place, self._options = dataset, topology, place, options
        if topology.num_replicas > 1 and dataset.element_spec is not None:
            _check_spec(dataset.element_spec, topology.num_replicas)

    def __iter__(self) -> "DistributedIterator":
        return DistributedIterator(self._dataset.node, self._topology, self._place, self._options)

    @property
    def element_spec(self) -> Any:
        """Structure of `PerReplicaSpec`, or of `TensorSpec` with one replica."""
        return _distributed_spec(self._dataset.element_spec, self._topology)

    def cardinality(self) -> int:
        """Number of steps of one pass; -1: infinite, -2: unknown."""
        return self._dataset.cardinality()


class DistributedIterator(ElementIterator):
    """One pass over a distributed dataset; a thread keeps the next batches on the devices."""

    def __init__(self, node: Node, topology: Topology, place: Place, options: InputOptions) -> None:
        super().__init__(node)
        self._topology, self._options = topology, options
        self._distribute = lambda element: _distribute(element, topology, place)
        self._go_to(node.open())

    def _go_to(self, cursor: Cursor) -> None:
        self._last = cursor.state()
        self._ahead = self._options.experimental_fetch_to_device is not False
        make = self._distribute if self._ahead else lambda element: element

        def produce() -> Any:
            block = cursor.pull(1)
            if block is None:
                return END
            return make(next(block.elements())), cursor.state()

        ahead = max(_MIN_AHEAD, self._options.experimental_per_replica_buffer_size)
        self._background = Background(produce, cursor.close, ahead, "replicant-input")

    def _take(self) -> Any:
        item = self._background.next()
        if item is END:
            return END
        element, self._last = item
        return element if self._ahead else self._distribute(element)

    def _position(self) -> State:
        return self._last

    def close(self) -> None:
        self._background.close()

    @property
    def element_spec(self) -> Any:
        """Structure of `PerReplicaSpec`, or of `TensorSpec` with one replica."""
        return _distributed_spec(self._node.spec, self._topology)


def _distribute(element: Any, topology: Topology, place: Place) -> Any:
    """The element as the user sees it on this worker."""
    leaves, structure = flatten(element)
    arrays = [np.asarray(leaf, dtype=object if isinstance(leaf, str | bytes) else None) for leaf in leaves]
    if topology.num_replicas == 1:
        placed = [place(array, array.shape[:1]) for array in arrays]
    else:
        _check_sizes([array.shape for array in arrays], structure, topology.num_replicas)
        placed = []
        for array in arrays:
            start, sizes = worker_chunk(len(array), topology)
            placed.append(place(array[start : start + sum(sizes)], sizes))
    return jax.tree_util.tree_unflatten(structure, placed)


def _check_spec(spec: Any, num_replicas: int) -> None:
    leaves, structure = flatten(spec)
    _check_sizes([leaf.shape for leaf in leaves], structure, num_replicas)


def _check_sizes(shapes: list[tuple[int | None, ...]], structure: Any, num_replicas: int) -> None:
    """Every component has rows, and as many as the others."""
    for i, shape in enumerate(shapes):
        if not shape:
            raise DatasetError(
                f"{component_names(structure)[i]} of the dataset is a scalar, which {num_replicas} replicas cannot "
                "share: every component needs the global batch as its leading dimension. "
                "Call `batch(global_batch_size)` on the dataset, after `enumerate` and `map`s that reduce a batch."
            )
    if len({shape[0] for shape in shapes if shape[0] is not None}) > 1:
        sizes = ", ".join(f"{name} has shape {shape}" for name, shape in zip(component_names(structure), shapes, strict=True))
        raise ElementError(
            f"All components of a global batch need the same leading size to be split over {num_replicas} replicas, "
            f"but {sizes}. Zip the datasets before `batch`, or reshape the components in `map`."
        )


def _distributed_spec(spec: Any, topology: Topology) -> Any:
    if spec is None or topology.num_replicas == 1:
        return spec

    def local(leaf: TensorSpec) -> PerReplicaSpec:
        size = static_chunk_size(leaf.shape[0], topology.num_replicas)
        return PerReplicaSpec(TensorSpec((size, *leaf.shape[1:]), leaf.dtype), topology.replicas_per_worker)

    return map_leaves(local, spec)
