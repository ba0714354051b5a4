"""`split_dataset`."""

import random
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError
from ...input._dataset import AUTOTUNE, Dataset
from ...input.graph._graph import INFINITE, Node
from ...input.transforms.batches._batch import Batch
from ...input.transforms.batches._padded import PaddedBatch
from ...input.transforms.memory._prefetch import Prefetch

_NAME = "split_dataset"
_EVERYTHING = 1 << 62  # elements in a batch
Size = int | float | None


def split_dataset(  # noqa: PLR0917 - the arguments are those of Keras
    dataset: Any,
    left_size: Size = None,
    right_size: Size = None,
    shuffle: bool = False,
    seed: int | None = None,
    preferred_backend: str | None = None,
) -> tuple[Dataset, Dataset]:
    """Return the first and the last examples of a small dataset, as `keras.utils.split_dataset` does. It is read into memory.

    Args:
        dataset: A `replicant.data.Dataset`, an array, or a list or tuple of arrays with as many rows. Of a dataset of batches, rows
            are counted, and both parts have such batches.
        left_size: The number of examples in the first part, or a fraction; None takes what the other part leaves.
        right_size: The same of the last part. Give at least one.
        shuffle: Whether to shuffle once, before. The order is Keras's for the same seed.
        seed: A seed for the order. Without one, it is drawn from Python's `random`.
        preferred_backend: As in Keras, but both parts are always a `replicant.data.Dataset`, so it must not be "torch".

    Raises:
        ArgumentError: If the sizes do not fit the dataset, or there is nothing in it.
        ArgumentTypeError: If the dataset or a size has another type.

    >>> left, right = split_dataset(np.arange(5), left_size=0.6)
    >>> list(left.batch(5)), list(right.batch(5))
    ([array([0, 1, 2])], [array([3, 4])])
    """
    if preferred_backend == "torch":
        raise ArgumentError(f'{_NAME}: preferred_backend must not be "torch": both parts are a replicant.data.Dataset.')
    if not isinstance(seed, int | float | str | bytes | bytearray | None):
        raise ArgumentTypeError(f"{_NAME}: seed must be a whole number or None. Received: {seed!r}.")
    rows, batch_size = _rows(dataset)
    total = len(jax.tree_util.tree_leaves(rows)[0])
    left, right = _sizes(left_size, right_size, total)
    order = list(range(total))
    if shuffle:
        random.Random(random.randint(0, 10**6) if seed is None else seed).shuffle(order)  # noqa: S311 - Keras's order
    parts = []
    for chosen in (order[:left], order[-right:]):
        part = Dataset.from_tensor_slices(jax.tree_util.tree_map(lambda array, chosen=chosen: array[chosen], rows))
        parts.append((part if batch_size is None else part.batch(batch_size)).prefetch(AUTOTUNE))
    return parts[0], parts[1]


def _rows(dataset: Any) -> tuple[Any, int | None]:
    """All examples in arrays, and the batch size if the dataset has batches."""
    if isinstance(dataset, Dataset):
        if dataset.cardinality() == INFINITE:
            raise ArgumentError(f"{_NAME}: the dataset is infinite. Limit it with `take`.")
        batch_size = _batch_size(dataset.node)
        if batch_size is not None:
            dataset = dataset.unbatch()
        found = list(dataset.batch(_EVERYTHING))
        if not found:
            raise ArgumentError(f"{_NAME}: the dataset is empty.")
        if not jax.tree_util.tree_leaves(found[0]):
            raise ArgumentError(f"{_NAME}: the elements of the dataset have no components.")
        return found[0], batch_size
    arrays = (dataset,) if isinstance(dataset, np.ndarray) else dataset
    if not isinstance(arrays, list | tuple) or not all(isinstance(array, np.ndarray) and array.ndim for array in arrays):
        raise ArgumentTypeError(
            f"{_NAME}: dataset must be a replicant.data.Dataset, an array of NumPy, or a list or tuple of them. "
            f"Received: {dataset!r}."
        )
    sizes = {len(array) for array in arrays}
    if len(sizes) != 1 or 0 in sizes:
        raise ArgumentError(f"{_NAME}: the arrays must have the same number of rows, at least one. They have {sorted(sizes)}.")
    return (dataset if isinstance(dataset, np.ndarray) else tuple(arrays)), None


def _batch_size(node: Node) -> int | None:
    while isinstance(node, Prefetch):
        node = node.input
    return node.sizes[0] if isinstance(node, Batch) and not isinstance(node, PaddedBatch) and len(node.sizes) == 1 else None


def _sizes(left: Size, right: Size, total: int) -> tuple[int, int]:
    """The numbers of examples in both parts."""
    if left is None and right is None:
        raise ArgumentError(f"{_NAME}: give left_size, right_size or both.")
    number = {"left": _size("left_size", left, total), "right": _size("right_size", right, total)}
    if number["left"] is None:
        number["left"] = total - (number["right"] or 0)
    if number["right"] is None:
        number["right"] = total - number["left"]
    if (isinstance(left, float) and isinstance(right, float) and left + right > 1) or number["left"] + number["right"] > total:
        raise ArgumentError(f"{_NAME}: left_size and right_size add up to more than all {total}. Received: {left} and {right}.")
    for side, count in number.items():
        if count == 0:
            raise ArgumentError(f"{_NAME}: of {total} examples, none would be in the {side} part. Received: {left} and {right}.")
    return number["left"], number["right"]


def _size(name: str, value: Size, total: int) -> int | None:
    """The number that a size stands for."""
    if value is None:
        return None
    if type(value) not in (int, float):
        raise ArgumentTypeError(f"{_NAME}: {name} must be an int or a float. Received: {value!r}.")
    if not 0 < value < (1 if isinstance(value, float) else total):
        raise ArgumentError(
            f"{_NAME}: {name} must be a whole number from 1 to {total - 1}, or a float between 0 and 1. Received: {value!r}."
        )
    return round(value * total) if isinstance(value, float) else value
