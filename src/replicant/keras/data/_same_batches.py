"""Checks now and then, by a checksum, that all workers have read the same batches: each worker computes a part of every batch."""

import contextvars
import zlib
from typing import Any

import jax
import numpy as np

from ...cluster.exchange._world import World

_EVERY = 256  # batches between two comparisons
_MODULUS = 1 << 64
_FACTOR = 6364136223846793005  # odd, so that no earlier batch is lost modulo 2**64

PROBLEM = (
    "The workers' batches differ. Give fit, evaluate and predict the same data in the same order on all workers: each worker "
    "computes its part of every batch. If each worker has its own part of the data, use strategy.experimental_distribute_dataset "
    "or distribute_datasets_from_function."
)


class Read:
    """The batches that one worker has read in a loop."""

    def __init__(self, world: World):
        self._world = world
        self._count, self._told, self._sum = 0, 0, 0

    def note(self, batch: Any) -> None:
        """Note a batch that is about to be computed. All workers do so equally often, and compare from time to time.

        Raises:
            WorkerMismatchError: If another worker has read something else.
        """
        self._count += 1
        self._sum = (self._sum * _FACTOR + sum_of(batch)) % _MODULUS
        if self._count - self._told >= _EVERY:
            self.compare()

    def compare(self) -> None:
        """Compare what the workers have read since the last comparison, if anything."""
        if self._count > self._told:
            first, self._told = self._told, self._count
            self._world.agree("batches", f"batches {first} to {self._count - 1} of this loop: sum {self._sum:016x}", PROBLEM)


read: contextvars.ContextVar[Read | None] = contextvars.ContextVar("replicant_read", default=None)  # that of the current loop


def sum_of(batch: Any) -> int:
    """Return a checksum of the bytes of all NumPy arrays in a batch, which any changed value changes. Device arrays do not count.

    >>> sum_of(np.array([0, 1, 3])), sum_of({"x": np.arange(3), "y": np.ones(2)}) == sum_of({"x": np.arange(3), "y": np.zeros(2)})
    (4, False)
    """
    total = 0
    for x in jax.tree.leaves(batch):
        if isinstance(x, np.ndarray) and not x.dtype.hasobject and x.nbytes:
            data = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
            whole = data.size // 8 * 8
            total = total * _FACTOR + int(data[:whole].view(np.uint64).sum(dtype=np.uint64)) + zlib.crc32(data[whole:].data)
    return total % _MODULUS
