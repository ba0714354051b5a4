"""The results of a traced function: separates their arrays from the rest, and puts the function's structure together again."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...replicas._values import HostArray, is_array, is_distributed
from ._recording_number import is_recording, refuse_in_structure, slot_of
from ._signature import ARRAY

_LEAF = jax.tree.structure(0)


@dataclasses.dataclass
class Shape:
    """The tree of a traced function's results, and those of its leaves that are not arrays."""

    tree: Any
    static: list[Any]  # ARRAY where the leaf is an array

    @classmethod
    def of(cls, result: Any) -> "tuple[Shape, list[Any]]":
        """Return the shape of `result` and its arrays."""
        leaves, tree = jax.tree.flatten(result)
        refuse_in_structure(tree)
        static = [_Computed(slot_of(leaf)) if is_recording(leaf) else ARRAY if is_array(leaf) else leaf for leaf in leaves]
        return cls(tree, static), [jnp.asarray(leaf) for leaf, kind in zip(leaves, static, strict=True) if kind is ARRAY]

    def fill(self, arrays: Sequence[Any], on_host: Sequence[Any], computed: Sequence[Any]) -> Any:
        """Return the result with these arrays, the host arrays that were passed through, and what was computed from numbers."""
        if self.tree == _LEAF and self.static[0] is ARRAY:  # as nearly always in a loop: the loss
            return arrays[0]
        rest = iter(arrays)
        leaves = [next(rest) if leaf is ARRAY else leaf for leaf in self.static]
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, HostArray):
                leaves[i] = on_host[leaf.position]
            elif isinstance(leaf, _Computed):
                leaves[i] = computed[leaf.slot]
        return jax.tree.unflatten(self.tree, leaves)


@dataclasses.dataclass(frozen=True)
class _Computed:
    """Replaces a number in a result that was computed from the numbers among the arguments. `slot` is its place on the tape."""

    slot: int


def array_homes(result: Any) -> list[Any]:
    """Return, for each array in `result`, the distributed value that contains it, or the array itself."""
    homes = []
    for leaf in jax.tree.leaves(result, is_leaf=is_distributed):
        inner = jax.tree.leaves(leaf) if is_distributed(leaf) else [leaf]
        homes += [leaf for x in inner if is_array(x)]
    return homes
