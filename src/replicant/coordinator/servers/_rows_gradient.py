"""The gradient of a few rows of a large variable, which travels as rows."""

from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class RowsGradient:
    """The gradient of a variable of which some rows were looked up. All other rows have a gradient of zero.

    Args:
        rows: ints of shape (n,), possibly repeated.
        values: the gradient of each row, of shape (n, ...).
    """

    def __init__(self, rows: Any, values: Any):
        self.rows = rows
        self.values = values

    def replace(self, values: Any) -> "RowsGradient":
        """The same rows with other values."""
        return RowsGradient(self.rows, values)

    def summed(self) -> "RowsGradient":
        """Add up the values of repeated rows at one position, with zeros at the others."""
        rows, where = jnp.unique(self.rows, return_inverse=True, size=self.rows.shape[0])
        return RowsGradient(rows, jax.ops.segment_sum(self.values, where.reshape(-1), self.rows.shape[0]))

    def to_dense(self, num_rows: int) -> jax.Array:
        """The gradient as an array of all rows."""
        return jnp.zeros((num_rows, *self.values.shape[1:]), self.values.dtype).at[self.rows].add(self.values)

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        """Return its arrays (for JAX)."""
        return (self.rows, self.values), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any, Any]) -> "RowsGradient":
        """Invert `tree_flatten` (for JAX)."""
        return cls(*parts)
