"""The arguments of ``strategy.run``, as the replicas see them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ...errors import ArgumentError
from ...replicas._values import HostArray, PerReplica, is_array, is_distributed
from ...runtime._jax_dtypes import in_jax_dtypes
from ._signature import argument_names


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The arguments of ``run``. They tell which leaves differ by replica, are arrays for all replicas, or are Python objects."""

    tree: Any
    leaves: list[Any]
    num_replicas: int

    @classmethod
    def of(cls, args: Any, num_replicas: int) -> "Inputs":
        leaves, tree = jax.tree.flatten(args)
        args = tree.unflatten(in_jax_dtypes(leaves, lambda: argument_names(tree)))
        leaves, tree = jax.tree.flatten(args, is_leaf=is_distributed)
        for leaf in leaves:
            if isinstance(leaf, PerReplica) and leaf.num_replicas != num_replicas:
                raise ArgumentError(
                    f"run: a PerReplica argument has {leaf.num_replicas} values, but the strategy has {num_replicas} replicas. "
                    "The argument belongs to another strategy. Distribute the data with this one."
                )
        return cls(tree, [_even(leaf) for leaf in leaves], num_replicas)

    @property
    def names(self) -> list[str]:
        """The user's name of each leaf, such as "args[0]['image']"."""
        numbered = jax.tree.unflatten(self.tree, range(len(self.leaves)))
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(numbered)[0]]
        return [("args" if path.startswith("[0]") else "kwargs") + path[3:] for path in paths]

    @property
    def ragged(self) -> bool:
        """Whether the replicas' arrays differ in shape or their Python objects differ, so that each is traced separately."""
        return any(isinstance(x, PerReplica) and x.stacked is None and not stays_on_host(x) for x in self.leaves)

    @property
    def objects_differ(self) -> bool:
        """Whether replicas get different Python objects, so that anything in their programs may differ."""
        return any(isinstance(x, PerReplica) and not moves(x) and not stays_on_host(x) for x in self.leaves)

    def has_rows(self, index: int) -> bool:
        """Return whether replica `index` has any data: an array that is not empty, or no arrays that could be empty."""
        mine = [_of_replica(x, index) for x in self.leaves if isinstance(x, PerReplica)]
        sizes = [x.shape[0] for x in mine if is_array(x) and x.ndim > 0]
        return not sizes or any(sizes)

    def of_replica(self, index: int) -> list[Any]:
        """Return the leaves as replica `index` sees them."""
        return [_of_replica(x, index) for x in self.leaves]


def stays_on_host(leaf: Any) -> bool:
    """Return whether each replica has an array on the host, which is only passed through."""
    return isinstance(leaf, PerReplica) and leaf.stacked is None and all(isinstance(v, HostArray) for v in leaf.values)


def moves(leaf: Any) -> bool:
    """Return whether `leaf` is an input of the replicas' program: an array, or one array for each replica."""
    if isinstance(leaf, PerReplica) and leaf.stacked is not None:
        return True
    return is_array(leaf) or (is_distributed(leaf) and all(map(is_array, leaf.values)))


def _of_replica(leaf: Any, index: int) -> Any:
    if isinstance(leaf, PerReplica) and leaf.stacked is not None:
        return leaf.stacked[index]
    return leaf.values[index] if is_distributed(leaf) else leaf


def _even(leaf: Any) -> Any:
    """Stack a PerReplica of arrays of equal shapes, or of Python numbers. Return other leaves as they are."""
    if isinstance(leaf, PerReplica) and leaf.stacked is None:
        values = leaf.values
        if all(type(v) is type(values[0]) and isinstance(v, bool | int | float | complex) for v in values):
            return PerReplica.from_stacked(jnp.asarray(values))
        if all(is_array(v) and v.shape == values[0].shape and v.dtype == values[0].dtype for v in values):
            return PerReplica.from_stacked(jnp.stack([jnp.asarray(v) for v in values]))
    return leaf
