"""An optimizer's compiled update of shards, or of some of their rows: called for few different numbers of rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def update_padded(
    program: Callable[[list[np.ndarray], list[list[np.ndarray]]], Sequence[Sequence[Any]]],
    shape_of: Callable[[int], tuple[int, ...]],
    items: Sequence[tuple[int, np.ndarray, list[np.ndarray]]],
    outs: Sequence[Sequence[np.ndarray]],
) -> None:
    """What ``Rule.update`` does.

    Args:
        program: makes the new values of gradients and old values, both of which have zeros after their rows.
        shape_of: the shape of a shard, by its index.
        items: for each shard its index, the gradient, and the old values.
        outs: where the new values are written.
    """
    sizes = [_num_computed(gradient.shape, shape_of(shard)) for shard, gradient, _ in items]
    gradients = [_pad(gradient, size) for (_, gradient, _), size in zip(items, sizes, strict=True)]
    values = [[_pad(x, size) for x in old] for (_, _, old), size in zip(items, sizes, strict=True)]
    for new, out in zip(program(gradients, values), outs, strict=True):
        for x, target in zip(new, out, strict=True):
            np.copyto(target, np.asarray(x)[: target.shape[0]] if target.ndim else np.asarray(x))


def _num_computed(shape: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
    """How many rows are computed for a gradient of some rows of a shard; None for the whole shard."""
    return None if shape == whole else 1 << (shape[0] - 1).bit_length()


def _pad(array: np.ndarray, size: int | None) -> np.ndarray:
    """Rows filled up with zeros to `size`. None: as it is."""
    if size is None or size == array.shape[0]:
        return array
    return np.concatenate([array, np.zeros((size - array.shape[0], *array.shape[1:]), array.dtype)])
