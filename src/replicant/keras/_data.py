"""Replicant's datasets as input of ``fit``, ``evaluate`` and ``predict``."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._values import PerReplica, map_replicas
from ..errors import ArgumentError, DatasetError
from ..input._dataset import Dataset
from ..input._distributed import DistributedDataset
from . import _internals


class DatasetAdapter(_internals.DataAdapter):
    """Feeds a dataset of ours, distributed or not, to Keras: always as global batches."""

    def __init__(self, dataset: Dataset | DistributedDataset, class_weight: dict[int, float] | None = None):
        self._dataset = dataset
        self._class_weight = class_weight

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Batches as tuples (x,), (x, y) or (x, y, sample_weight)."""
        empty = True
        for element in self._dataset:
            empty = False
            batch = map_replicas(_global_batch, element)
            yield self._weighted(batch if isinstance(batch, tuple) else (batch,))
        if empty:
            raise DatasetError(
                f"{self._dataset!r} yields no batch: nothing to train on, to evaluate or to predict. Look at its source, and at "
                "filter, take, skip and batch(..., drop_remainder=True), which can leave nothing."
            )

    get_jax_iterator = get_numpy_iterator

    def _weighted(self, batch: tuple[Any, ...]) -> tuple[Any, ...]:
        """The batch with the weights of its labels' classes."""
        if self._class_weight is None:
            return batch
        if len(batch) != 2 or not hasattr(batch[1], "shape"):
            raise ArgumentError(
                f"`class_weight` needs a dataset that yields (x, y) with one array of labels; this one yields {len(batch)} "
                "component(s). Let the dataset yield (x, y, sample_weight) instead."
            )
        return *batch, _internals.class_weight_to_sample_weights(batch[1], self._class_weight)

    @property
    def num_batches(self) -> int | None:
        """Batches of one epoch, None where that is infinite or unknown."""
        cardinality = self._dataset.cardinality()
        return cardinality if cardinality >= 0 else None

    @property
    def batch_size(self) -> int | None:
        """Keras asks; nothing depends on it."""
        return None

    @property
    def has_partial_batch(self) -> bool | None:
        """Keras asks; nothing depends on it."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """Keras asks; nothing depends on it."""
        return None


def _global_batch(leaf: Any) -> Any:
    """A distributed component in one piece: the replicas' rows in replica order."""
    if not isinstance(leaf, PerReplica):
        return leaf
    if leaf.stacked is None:
        return np.concatenate([np.asarray(value) for value in leaf.values])
    return leaf.stacked.reshape(-1, *leaf.stacked.shape[2:])


def adapt(original: Callable[..., Any], x: Any, y: Any = None, sample_weight: Any = None, **options: Any) -> Any:
    """Keras's choice of an adapter, which knows our datasets too."""
    if not isinstance(x, Dataset | DistributedDataset):
        return original(x, y, sample_weight, **options)
    for name, value in (("y", y), ("sample_weight", sample_weight)):
        if value is not None:
            raise ArgumentError(
                f"`{name}` was given beside a dataset, which brings its own: let the dataset yield (x, y) or (x, y, sample_weight)."
            )
    return DatasetAdapter(x, options.get("class_weight"))


def connect() -> None:
    """Teach Keras about our datasets."""
    original = _internals.data_adapters.get_data_adapter

    def get_data_adapter(x: Any, y: Any = None, sample_weight: Any = None, *args: Any, **options: Any) -> Any:
        names = ("batch_size", "steps_per_epoch", "shuffle", "class_weight")
        return adapt(original, x, y, sample_weight, **dict(zip(names, args, strict=False)), **options)

    _internals.data_adapters.get_data_adapter = get_data_adapter
