"""The results of a traced function: separates their arrays from the rest, and puts the function's structure together again."""

import dataclasses
from collections.abc import Container, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..replicas._values import HostArray, is_array, is_distributed
from ._signature import ARRAY

_LEAF = jax.tree.structure(0)


@dataclasses.dataclass
class Shape:
    """The tree of a traced function's results, and those of its leaves that are not arrays."""

    tree: Any
    static: list[Any]  # ARRAY where the leaf is an array

    @classmethod
    def of(cls, result: Any, numbers: "dict[int, PassedNumber] | None" = None) -> "tuple[Shape, list[Any]]":
        """Return the shape of `result` and its arrays. `numbers` holds the inputs that are Python numbers, by id."""
        numbers = numbers or {}
        leaves, tree = jax.tree.flatten(result)
        static = [numbers.get(id(leaf), ARRAY) if is_array(leaf) else leaf for leaf in leaves]
        return cls(tree, static), [jnp.asarray(leaf) for leaf, kind in zip(leaves, static, strict=True) if kind is ARRAY]

    def fill(self, arrays: Sequence[Any], on_host: Sequence[Any], inputs: Sequence[Any]) -> Any:
        """Return the result with these arrays, and with the numbers and host arrays that were passed through."""
        if self.tree == _LEAF and self.static[0] is ARRAY:  # as nearly always in a loop: the loss
            return arrays[0]
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
    """Replaces a Python number that was passed through in a result. `position` tells which input it was."""

    position: int


def array_homes(result: Any, but: Container[int]) -> list[Any]:
    """Return, for each array in `result`, the distributed value that contains it, or the array itself. Skip the ids in `but`."""
    homes = []
    for leaf in jax.tree.leaves(result, is_leaf=is_distributed):
        inner = jax.tree.leaves(leaf) if is_distributed(leaf) else [leaf]
        homes += [leaf for x in inner if is_array(x) and id(x) not in but]
    return homes


def computed(result: Any) -> list[Any]:
    """Return the arrays and numbers in a result."""
    return [jnp.asarray(x) for x in jax.tree.leaves(result) if is_array(x) or type(x) in (int, float)]
