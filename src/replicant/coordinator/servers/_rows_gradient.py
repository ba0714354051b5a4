"""Gradients of a few rows of a large variable: they travel as rows."""

from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class RowsGradient:
    """The gradient of a variable of which a function looked up some rows.

    rows: ints of shape (n,), the rows, possibly repeated. values: of shape (n, ...), the gradient of each. What is not named is
    zero.
    """

    def __init__(self, rows: Any, values: Any):
        self.rows = rows
        self.values = values

    def replace(self, values: Any) -> "RowsGradient":
        """The same rows with other values."""
        return RowsGradient(self.rows, values)

    def summed(self) -> "RowsGradient":
        """Each row's values added up in one place, zeros in the others."""
        rows, where = jnp.unique(self.rows, return_inverse=True, size=self.rows.shape[0])
        return RowsGradient(rows, jax.ops.segment_sum(self.values, where.reshape(-1), self.rows.shape[0]))

    def to_dense(self, num_rows: int) -> jax.Array:
        """As an array with all rows."""
        return jnp.zeros((num_rows, *self.values.shape[1:]), self.values.dtype).at[self.rows].add(self.values)

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        """Its arrays (for JAX)."""
        return (self.rows, self.values), None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[Any, Any]) -> "RowsGradient":
        """Inverse of tree_flatten (for JAX)."""
        return cls(*parts)
