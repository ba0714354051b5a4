"""Partitioners: into how many shards a variable is cut, along its first axis.

Pure functions of shape and dtype. Semantics: ``tf.distribute.experimental.partitioners``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError

# A callable (shape, dtype) -> the number of parts of each axis.
VariablePartitioner = Callable[..., Sequence[int]]

_STRING_BYTES = 16  # the default size of a string


class Partitioner:
    """Base class of partitioners: ``partitioner(shape, dtype, axis=0)`` returns the number of parts of each axis."""

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """The number of parts of each axis.

        Args:
            shape: the variable's shape, with at least one axis.
            dtype: a NumPy or JAX dtype, or its name.
            axis: int in [-rank, rank), the axis to cut.

        Returns:
            A list of ints: 1 for every axis but `axis`.

        Raises:
            ArgumentError: if the variable is a scalar, or `axis` is out of range.
        """
        shape = tuple(shape)
        if not shape:
            raise ArgumentError(f"{self!r} was asked to cut a scalar, but only variables with at least one axis have shards.")
        if not -len(shape) <= axis < len(shape):
            raise ArgumentError(f"{self!r}: axis {axis} is out of range for shape {shape}: use -{len(shape)} to {len(shape) - 1}.")
        parts = [1] * len(shape)
        parts[axis] = self._count(shape, self._item_bytes(dtype), shape[axis])
        return parts

    _bytes_per_string = _STRING_BYTES

    def _item_bytes(self, dtype: Any) -> int:
        return self._bytes_per_string if dtype in ("string", str) else np.dtype(dtype).itemsize

    def _count(self, shape: tuple[int, ...], item_bytes: int, dim: int) -> int:
        raise NotImplementedError


class FixedShardsPartitioner(Partitioner):
    """Cuts every variable into the same number of shards, or into one per row if it has fewer rows.

    Args:
        num_shards: int >= 1.

    Raises:
        ArgumentError: if `num_shards` is not a whole number >= 1.

    Semantics: tf.distribute.experimental.partitioners.FixedShardsPartitioner.

    >>> FixedShardsPartitioner(3)((10, 4), "float32")
    [3, 1]
    """

    def __init__(self, num_shards: int):
        self._num_shards = _positive("num_shards", num_shards)

    def _count(self, shape: tuple[int, ...], item_bytes: int, dim: int) -> int:
        return max(1, min(self._num_shards, dim))

    def __repr__(self) -> str:
        return f"FixedShardsPartitioner({self._num_shards})"


class MinSizePartitioner(Partitioner):
    """Cuts a variable into as many shards as it has pieces of `min_shard_bytes`, up to `max_shards`.

    Args:
        min_shard_bytes: int >= 1, in bytes. A smaller last piece counts, too.
        max_shards: int >= 1.
        bytes_per_string: int >= 1, the size of an element of dtype "string".

    Raises:
        ArgumentError: if an argument is not a whole number >= 1.

    Semantics: tf.distribute.experimental.partitioners.MinSizePartitioner.

    >>> MinSizePartitioner(min_shard_bytes=64, max_shards=4)((10, 4), "float32")
    [3, 1]
    """

    def __init__(self, min_shard_bytes: int = 256 << 10, max_shards: int = 1, bytes_per_string: int = _STRING_BYTES):
        self._min_shard_bytes = _positive("min_shard_bytes", min_shard_bytes)
        self._max_shards = _positive("max_shards", max_shards)
        self._bytes_per_string = _positive("bytes_per_string", bytes_per_string)

    def _count(self, shape: tuple[int, ...], item_bytes: int, dim: int) -> int:
        return max(1, min(self._max_shards, dim, math.ceil(math.prod(shape) * item_bytes / self._min_shard_bytes)))

    def __repr__(self) -> str:
        return f"MinSizePartitioner(min_shard_bytes={self._min_shard_bytes}, max_shards={self._max_shards})"


class MaxSizePartitioner(Partitioner):
    """Cuts a variable into the fewest shards of at most `max_shard_bytes` each. A row is never cut.

    Args:
        max_shard_bytes: int >= 1, in bytes.
        max_shards: int >= 1, or None for no limit.
        bytes_per_string: int >= 1, the size of an element of dtype "string".

    Raises:
        ArgumentError: if an argument is not a whole number >= 1.

    Semantics: tf.distribute.experimental.partitioners.MaxSizePartitioner.

    >>> MaxSizePartitioner(max_shard_bytes=64)((10, 4), "float32")
    [3, 1]
    """

    def __init__(self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = _STRING_BYTES):
        self._max_shard_bytes = _positive("max_shard_bytes", max_shard_bytes)
        self._max_shards = None if max_shards is None else _positive("max_shards", max_shards)
        self._bytes_per_string = _positive("bytes_per_string", bytes_per_string)

    def _count(self, shape: tuple[int, ...], item_bytes: int, dim: int) -> int:
        total = math.prod(shape) * item_bytes
        if not total:
            return 1
        rows = max(1, self._max_shard_bytes // (total // dim))
        return min(math.ceil(dim / rows), self._max_shards or dim)

    def __repr__(self) -> str:
        limit = "" if self._max_shards is None else f", max_shards={self._max_shards}"
        return f"MaxSizePartitioner(max_shard_bytes={self._max_shard_bytes}{limit})"


def num_shards(partitioner: VariablePartitioner | None, shape: Sequence[int], dtype: Any) -> int:
    """How many shards a strategy's partitioner gives a variable. It is not asked about scalars, which have one.

    Raises:
        ArgumentError: if the partitioner does not return one whole number >= 1 per axis, all 1 but the first.
    """
    if partitioner is None or not shape:
        return 1
    parts = partitioner(tuple(shape), dtype)
    ok = isinstance(parts, list | tuple) and len(parts) == len(shape) and all(isinstance(p, int | np.integer) for p in parts)
    if not ok or parts[0] < 1 or any(p != 1 for p in parts[1:]):
        raise ArgumentError(
            f"variable_partitioner must return a list of {len(shape)} whole numbers for shape {tuple(shape)}: the first at "
            f"least 1, and all others 1, because only the first axis is cut. Received: {parts!r}."
        )
    return int(parts[0])


def check_partitioner(partitioner: Any) -> None:
    """Raise ArgumentTypeError unless `partitioner` is callable or None."""
    if partitioner is not None and not callable(partitioner):
        raise ArgumentTypeError(
            f"variable_partitioner must be callable as partitioner(shape, dtype), like FixedShardsPartitioner(2). "
            f"Received: {partitioner!r}."
        )


def _positive(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"{name} must be a whole number >= 1. Received: {value!r}.")
    return int(value)
