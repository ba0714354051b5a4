"""What ``fit`` and ``evaluate`` get as data, as a function that makes a worker's batches."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from ...input._dataset import Dataset

_DEFAULT_BATCH = 32


def batches_maker(
    data: Sequence[Any], batch_size: int | None, arrange: Callable[[Dataset, int], Dataset] = lambda dataset, _: dataset
) -> tuple[Callable[[], Any], int | None]:
    """A function that makes the batches, and how many there are in one pass over the data, if that is known.

    Args:
        data: x, and what goes with it or None: y, sample weights. x may be a dataset, or a function that makes one.
        batch_size: of arrays.
        arrange: given the dataset of all rows and their number, returns the dataset that is cut into batches.
    """
    x, *others = data
    if callable(x):
        return x, None
    if hasattr(x, "__iter__") and not isinstance(x, np.ndarray | dict | list | tuple) and not hasattr(x, "__array__"):
        return lambda: x, None
    arrays = keras.tree.map_structure(np.asarray, (x, *[part for part in others if part is not None]))
    num_rows, size = len(keras.tree.flatten(arrays)[0]), batch_size or _DEFAULT_BATCH
    return lambda: arrange(Dataset.from_tensor_slices(arrays), num_rows).batch(size), math.ceil(num_rows / size)
