"""``Held`` stands for an object that JAX would take apart, but that a step uses as it is: a module of Flax NNX, made outside.

Such an object is hidden from all tree functions while arguments go into a program and results come out of it. The code itself gets,
and returns, the object.
"""

from typing import Any, TypeVar

import jax

from ...variables._known import objects

_Tree = TypeVar("_Tree")


class Held:
    """One object, which equals only itself."""

    __slots__ = ("target",)

    def __init__(self, target: Any):
        self.target = target

    @property
    def key(self) -> int:
        """What must be equal for one of them to stand for another."""
        return id(self.target)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and other.target is self.target

    def __repr__(self) -> str:
        return f"<{type(self.target).__name__}>"


def hide(tree: _Tree) -> _Tree:
    """Return `tree` with a Held in place of each object that steps use as it is."""
    if not objects.kinds:
        return tree

    def hidden(node: Any) -> Any:
        return Held(node) if objects.is_used_itself(node) else node

    return jax.tree.map(hidden, tree, is_leaf=_stops)


def show(tree: _Tree) -> _Tree:
    """Return `tree` with the objects themselves again."""
    if not objects.kinds or not any(isinstance(leaf, Held) for leaf in jax.tree.leaves(tree)):
        return tree
    return jax.tree.map(lambda leaf: leaf.target if isinstance(leaf, Held) else leaf, tree)


def is_object(node: Any) -> bool:
    """Whether `node` is an object that steps use as it is."""
    return objects.is_used_itself(node)


def _stops(node: Any) -> bool:
    return isinstance(node, objects.stops)
