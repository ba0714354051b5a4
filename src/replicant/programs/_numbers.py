"""Python numbers among the arguments of a compiled function: at first constants of its program, inputs once they change.

The first value is part of the program, as every Python object is. When another value comes in the same place, the number becomes an
input of one program for all values: a weakly typed scalar, as in ``jax.jit``. Code that needs the number itself (in an ``if``, a
``range`` or a shape) cannot be traced that way. Then each value gets its own program, and a warning names the argument.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..replicas._values import is_distributed

_MAX_INT = 2**31  # the limit of an int32, JAX's default integer
_SMALLEST, _LARGEST = 2.0**-126, float(jnp.finfo(jnp.float32).max)  # the range of a float32 in full precision


def can_be_input(leaf: Any) -> bool:
    """Return whether `leaf` is a number with which a device computes as Python does, except for its precision."""
    if type(leaf) is int:
        return -_MAX_INT <= leaf < _MAX_INT
    if type(leaf) is float:
        return leaf == 0 or not math.isfinite(leaf) or _SMALLEST <= abs(leaf) <= _LARGEST
    return False


def dtype_of(leaf: Any) -> Any:
    """Return the dtype that a number has as an input."""
    return jax.dtypes.canonicalize_dtype(type(leaf))


class Numbers:
    """What is known about the numbers in the arguments of one function. A place is a path such as ``args[1].step``."""

    def __init__(self) -> None:
        self._first: dict[Any, Any] = {}  # place -> the first value
        self._inputs: set[Any] = set()  # places of numbers that are inputs
        self._needed: set[Any] = set()  # places where the code needs the number itself
        self._by_tree: dict[Any, tuple[int, ...]] = {}  # structure -> the leaves that are inputs

    def inputs(self, tree: Any, leaves: Sequence[Any]) -> tuple[int, ...]:
        """Return the positions of the leaves that are inputs although they are Python numbers. Every call asks this."""
        if not self._by_tree:
            return ()
        return tuple(i for i in self._by_tree.get(tree, ()) if can_be_input(leaves[i]))

    def learn(self, tree: Any, leaves: Sequence[Any], works: Callable[[tuple[int, ...]], bool]) -> None:
        """Note the numbers of a call for which there is no program.

        ``works(positions)`` tells whether the function can be traced with these leaves as inputs.
        """
        places = _places(tree)
        current = [*self._by_tree.get(tree, ())]
        new = []
        for i, leaf in enumerate(leaves):
            place = places[i]
            if place is None or not can_be_input(leaf) or i in current or place in self._needed:
                continue
            first = self._first.setdefault(place, leaf)
            if place in self._inputs or type(first) is not type(leaf) or first != leaf:
                new.append(i)
        if not new:
            return
        accepted = [*current, *new]
        if not works(tuple(accepted)):
            accepted = current
            for i in new:
                accepted = [*accepted, i] if works((*accepted, i)) else accepted
            if not works(tuple(current)):
                return  # it fails whatever the new numbers are
        self._needed |= {places[i] for i in new if i not in accepted}
        self._inputs |= {places[i] for i in accepted}
        if accepted:
            self._by_tree[tree] = tuple(sorted(accepted))

    def refuse(self, tree: Any) -> None:
        """Accept no number of this structure as an input from now on."""
        places = _places(tree)
        self._needed |= {places[i] for i in self._by_tree.pop(tree, ())}
        self._inputs -= self._needed


@functools.lru_cache(maxsize=256)
def _places(tree: Any) -> list[Any]:
    """Return the path of every leaf; None inside distributed values, whose numbers become arrays anyway."""
    places: list[Any] = []
    marked = jax.tree.unflatten(tree, range(tree.num_leaves))
    for path, leaf in jax.tree_util.tree_flatten_with_path(marked, is_leaf=is_distributed)[0]:
        places += [None] * len(jax.tree.leaves(leaf)) if is_distributed(leaf) else [path]
    return places


def name_of(fn: Callable[..., Any], tree: Any, position: int) -> str:
    """Return what the code calls the argument at a leaf of ``(args, kwargs)``: ``step``, ``state.step``, ``args[2]``."""
    marked = jax.tree.unflatten(tree, range(tree.num_leaves))
    path = jax.tree_util.tree_flatten_with_path(marked)[0][position][0]
    in_args, top, rest = path[0].idx == 0, path[1], jax.tree_util.keystr(path[2:])
    return (_parameter(fn, top.idx) if in_args else str(top.key)) + rest


def _parameter(fn: Callable[..., Any], index: int) -> str:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # functions written in C
        return f"args[{index}]"
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional[index] if index < len(positional) else f"args[{index}]"
