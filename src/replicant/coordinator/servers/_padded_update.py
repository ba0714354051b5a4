"""Calls an optimizer's compiled update of shards, or of some rows, with few different numbers of rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def update_padded(
    program: Callable[[list[np.ndarray], list[list[np.ndarray]]], Sequence[Sequence[Any]]],
    shape_of: Callable[[int], tuple[int, ...]],
    items: Sequence[tuple[int, np.ndarray, list[np.ndarray]]],
    outs: Sequence[Sequence[np.ndarray]],
) -> None:
    """Implement ``Rule.update`` with a compiled program.

    Args:
        program: computes new values from gradients and old values, both of which are padded with rows of zeros.
        shape_of: returns the shape of a shard, given its index.
        items: for each shard, its index, the gradient and the old values.
        outs: the arrays that receive the new values.
    """
    sizes = [_num_computed(gradient.shape, shape_of(shard)) for shard, gradient, _ in items]
    gradients = [_pad(gradient, size) for (_, gradient, _), size in zip(items, sizes, strict=True)]
    values = [[_pad(x, size) for x in old] for (_, _, old), size in zip(items, sizes, strict=True)]
    for new, out in zip(program(gradients, values), outs, strict=True):
        for x, target in zip(new, out, strict=True):
            np.copyto(target, np.asarray(x)[: target.shape[0]] if target.ndim else np.asarray(x))


def _num_computed(shape: tuple[int, ...], whole: tuple[int, ...]) -> int | None:
    """To how many rows a gradient of some rows of a shard is padded; None for the whole shard."""
    return None if shape == whole else 1 << (shape[0] - 1).bit_length()


def _pad(array: np.ndarray, size: int | None) -> np.ndarray:
    """Pad an array with rows of zeros to `size` rows; None leaves it unchanged."""
    if size is None or size == array.shape[0]:
        return array
    return np.concatenate([array, np.zeros((size - array.shape[0], *array.shape[1:]), array.dtype)])
