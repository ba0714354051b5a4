"""Turns the data given to ``fit`` or ``evaluate`` into a function that makes a worker's batches."""

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
    """Make a function that makes a worker's batches.

    Args:
        data: x, y and sample weights, where all but x may be None. x may be a dataset, or a function that makes one.
        batch_size: the batch size for arrays, by default 32.
        arrange: is called with the dataset of all rows and their number, and returns the dataset to cut into batches.

    Returns:
        The function, and the number of batches in one pass over the data, or None if that is unknown.
    """
    x, *others = data
    if callable(x):
        return x, None
    if hasattr(x, "__iter__") and not isinstance(x, np.ndarray | dict | list | tuple) and not hasattr(x, "__array__"):
        return lambda: x, None
    arrays = keras.tree.map_structure(np.asarray, (x, *[part for part in others if part is not None]))
    num_rows, size = len(keras.tree.flatten(arrays)[0]), batch_size or _DEFAULT_BATCH
    return lambda: arrange(Dataset.from_tensor_slices(arrays), num_rows).batch(size), math.ceil(num_rows / size)
