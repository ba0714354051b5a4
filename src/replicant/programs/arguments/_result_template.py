"""The results of a traced function: separates their arrays from the rest, and puts the function's structure together again."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...replicas._values import HostArray, is_array, is_distributed
from ._recording_number import is_recording, refuse_in_structure, slot_of
from ._signature import ARRAY

_LEAF = jax.tree.structure(0)


@dataclasses.dataclass(frozen=True)
class Passed:
    """Replaces an argument in a result, through which it was passed. `position` is its place among the arguments."""

    position: int


@dataclasses.dataclass(frozen=True)
class Computed:
    """Replaces a number in a result that was computed from the numbers among the arguments. `slot` is its place on the tape."""

    slot: int


@dataclasses.dataclass(frozen=True)
class ResultTemplate:
    """The tree of a traced function's results, where None is a leaf, and the kinds of its leaves."""

    tree: Any
    kinds: list[Any]  # ARRAY, a Passed, a Computed, or the leaf itself

    @classmethod
    def of(cls, result: Any, kind_of: Callable[[Any], Any]) -> "tuple[ResultTemplate, list[Any]]":
        """Return the template of `result` and its arrays. `kind_of` returns the kind of a leaf."""
        leaves, tree = jax.tree.flatten(result, is_leaf=lambda x: x is None)
        refuse_in_structure(tree)
        kinds = [*map(kind_of, leaves)]
        return cls(tree, kinds), [jnp.asarray(leaf) for leaf, kind in zip(leaves, kinds, strict=True) if kind is ARRAY]

    @property
    def num_arrays(self) -> int:
        return sum(kind is ARRAY for kind in self.kinds)

    def leaves(self, arrays: Sequence[Any], passed: Sequence[Any], computed: Sequence[Any] = ()) -> list[Any]:
        """Return the leaves of the result with these arrays, the arguments, and what was computed from numbers."""
        rest = iter(arrays)
        leaves = [next(rest) if kind is ARRAY else kind for kind in self.kinds]
        for i, kind in enumerate(leaves):
            if isinstance(kind, Passed):
                leaves[i] = passed[kind.position]
            elif isinstance(kind, Computed):
                leaves[i] = computed[kind.slot]
        return leaves

    def fill(self, arrays: Sequence[Any], passed: Sequence[Any], computed: Sequence[Any] = ()) -> Any:
        """Return the result with these leaves."""
        if self.tree == _LEAF and self.kinds[0] is ARRAY:  # as nearly always in a loop: the loss
            return arrays[0]
        return self.tree.unflatten(self.leaves(arrays, passed, computed))


def kind_in_program(leaf: Any) -> Any:
    """Return the kind of a leaf in the result of a whole program, through which only arrays on the host are passed."""
    if is_recording(leaf):
        return Computed(slot_of(leaf))
    if isinstance(leaf, HostArray):
        return Passed(leaf.position)
    return ARRAY if is_array(leaf) else leaf


def array_homes(result: Any) -> list[Any]:
    """Return, for each array in `result`, the distributed value that contains it, or the array itself."""
    homes = []
    for leaf in jax.tree.leaves(result, is_leaf=is_distributed):
        inner = jax.tree.leaves(leaf) if is_distributed(leaf) else [leaf]
        homes += [leaf for x in inner if is_array(x)]
    return homes
