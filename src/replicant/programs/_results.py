"""The results of a traced function: which of them are arrays, and how the function's own structure is put together again."""

import dataclasses
from collections.abc import Container, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..replicas._values import HostArray, is_array, is_distributed
from ._signature import ARRAY


@dataclasses.dataclass
class Shape:
    """The results of a traced function: their tree, and its leaves that are not arrays."""

    tree: Any
    static: list[Any]  # ARRAY where the leaf is an array

    @classmethod
    def of(cls, result: Any, numbers: "dict[int, PassedNumber] | None" = None) -> "tuple[Shape, list[Any]]":
        """The shape of `result`, and its arrays. `numbers`: by id, the inputs that are Python numbers."""
        numbers = numbers or {}
        leaves, tree = jax.tree.flatten(result)
        static = [numbers.get(id(leaf), ARRAY) if is_array(leaf) else leaf for leaf in leaves]
        return cls(tree, static), [jnp.asarray(leaf) for leaf, kind in zip(leaves, static, strict=True) if kind is ARRAY]

    def fill(self, arrays: Sequence[Any], on_host: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """The result with these arrays, and with the numbers and those on the host that were handed through."""
        rest = iter(arrays)
        leaves = [next(rest) if leaf is ARRAY else leaf for leaf in self.static]
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, HostArray):
                leaves[i] = on_host[leaf.position]
            elif isinstance(leaf, PassedNumber):
                leaves[i] = inputs[leaf.position]
        return jax.tree.unflatten(self.tree, leaves)


@dataclasses.dataclass(frozen=True)
class PassedNumber:
    """Stands in a result for a Python number that was handed through: which of the inputs."""

    position: int


def array_homes(result: Any, but: Container[int]) -> list[Any]:
    """For every array leaf of `result`, except these by id, the distributed value that it belongs to, or itself."""
    homes = []
    for leaf in jax.tree.leaves(result, is_leaf=is_distributed):
        inner = jax.tree.leaves(leaf) if is_distributed(leaf) else [leaf]
        homes += [leaf for x in inner if is_array(x) and id(x) not in but]
    return homes


def computed(result: Any) -> list[Any]:
    """The arrays and numbers in a result."""
    return [jnp.asarray(x) for x in jax.tree.leaves(result) if is_array(x) or type(x) in (int, float)]
