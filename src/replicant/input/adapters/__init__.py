"""Datasets from the objects with which other libraries yield global batches.

Objects are recognized by the names of their classes, so no library is imported unless its user has imported it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentTypeError
from .._dataset import Dataset
from .._options import AutoShardPolicy, Options
from ..files.columns._huggingface import huggingface
from ..graph._graph import Node
from ..sources._sources import tensors
from ._batches import Batches
from ._grain import GrainIterable, GrainMap
from ._keras import PyDatasetBatches
from ._tensorflow import TensorFlowDataset
from ._torch import TorchBatches

# library, class (or a base class), and the function that makes a node from an object
_KINDS: list[tuple[str, str, Callable[[Any], Node]]] = [
    ("tensorflow", "DatasetV2", TensorFlowDataset.of),
    ("grain", "MapDataset", GrainMap.of),
    ("grain", "IterDataset", GrainIterable.of),
    ("grain", "DataLoader", GrainIterable.of),
    ("torch", "DataLoader", TorchBatches.of),
    ("keras", "PyDataset", PyDatasetBatches.of),
    ("datasets.arrow_dataset", "Dataset", huggingface),
    ("datasets.iterable_dataset", "IterableDataset", huggingface),
    ("pandas", "DataFrame", lambda frame: tensors({str(name): frame[name].to_numpy() for name in frame})),
    ("pandas", "Series", lambda series: tensors(series.to_numpy())),
]


def as_dataset(value: Any) -> Dataset:
    """Return a dataset of the same global batches. An array, or a tuple or dict of arrays, is one batch.

    Raises:
        ArgumentTypeError: If the value does not yield batches.
    """
    if isinstance(value, Dataset):
        return value
    for library, name, make in _KINDS:
        if any(base.__name__ == name and f"{base.__module__}.".startswith(f"{library}.") for base in type(value).__mro__):
            node = make(value)
            return Dataset(node, _options(value)) if isinstance(node, TensorFlowDataset) else Dataset(node)
    if isinstance(value, tuple | dict | np.ndarray | jax.Array):
        return Dataset(tensors(value))
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return Dataset(Batches.of(value))
    raise ArgumentTypeError(
        "Only a replicant.data.Dataset, or an object that yields global batches, can be distributed. "
        f"Received: {type(value).__name__}. Make a dataset with `Dataset.from_tensor_slices(arrays).batch(global_batch_size)`."
    )


def _options(dataset: Any) -> Options:
    """The policy of a tf.data.Dataset; its numbers are the same."""
    options = Options()
    policy = dataset.options().experimental_distribute.auto_shard_policy
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy(int(policy.value))
    return options
