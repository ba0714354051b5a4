"""The rows of a global batch, as they are shared out to replicas that compute it in micro-batches."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from ...errors import ArgumentError


class Batch:
    """A global batch: an equal number of rows for each replica, and at most one row more for some of them, the tail."""

    def __init__(self, data: Any, num_replicas: int):
        leaves, self._tree = jax.tree.flatten(data)
        self._leaves = [jnp.asarray(x) for x in leaves]
        self.rows = self._leaves[0].shape[0] if self._leaves and self._leaves[0].ndim else 0
        if any(x.ndim == 0 or x.shape[0] != self.rows for x in self._leaves):
            raise ArgumentError(
                "use_micro_batches: all arrays of a batch need the same number of rows; got the shapes "
                f"{', '.join(str(x.shape) for x in self._leaves)}."
            )
        self.each, self.tail = divmod(self.rows, num_replicas)
        whole = self.each * num_replicas
        self.main = [x[:whole] for x in self._leaves]
        # Replicas without a row of the tail compute a copy, which does not count.
        pad = np.minimum(np.arange(num_replicas if self.tail else 0), self.tail - 1)
        self.last = [x[whole:][pad] if self.tail else x[:0] for x in self._leaves]

    def data(self, rows: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return rows as (x, y, sample weights)."""
        return keras.utils.unpack_x_y_sample_weight(jax.tree.unflatten(self._tree, rows))
