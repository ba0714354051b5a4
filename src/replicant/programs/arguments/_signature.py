"""Tells which programs may fit a call: arrays are inputs, numbers have guards, and everything else is part of a key."""

import re
from collections.abc import Sequence
from typing import Any

import jax

from ...replicas._placement import Placement
from ...replicas._values import HostArray, is_array, is_host_array
from ...runtime._plain_values import PLAIN, plain_key
from ._opaque import Held


def argument_names(tree: Any) -> list[str]:
    """Return what the user calls the leaves of ``(args, kwargs)``, such as "args[0]['image']"."""
    paths = jax.tree_util.tree_flatten_with_path(tree.unflatten(range(tree.num_leaves)))[0]
    names = [re.sub(r"\[<flat index (\d+)>\]", r".values[\1]", jax.tree_util.keystr(path[1:])) for path, _ in paths]
    return [("args" if path[0].idx == 0 else "kwargs") + name for (path, _), name in zip(paths, names, strict=True)]


class _Array:
    def __repr__(self) -> str:
        return "<array>"


ARRAY = _Array()


class Number:
    """Stands in a key for any Python number of one class. Each program has guards that tell for which it is right."""

    __slots__ = ("kind",)

    def __init__(self, kind: type):
        self.kind = kind


NUMBERS = {int: Number(int), float: Number(float)}


class Signature:
    """One call's arguments, separated into the inputs of a program and the key of those that may be right for them.

    Args:
        leaves: The leaves of the arguments.
        tree: The structure of the arguments.
        placement: The devices.
    """

    __slots__ = ("arrays", "computed", "key", "numbers", "on_host", "placement", "tree")

    def __init__(self, leaves: Sequence[Any], tree: Any, placement: Placement):
        self.tree, self.placement = tree, placement
        self.on_host: list[Any] = []
        self.arrays = [leaf for leaf in leaves if is_array(leaf)]
        self.numbers = [x for x in leaves if type(x) in NUMBERS] if len(self.arrays) < len(leaves) else []
        self.computed: list[Any] = []  # what the program that was found computes from the numbers, by slot of its tape
        static = tuple(ARRAY if is_array(leaf) else NUMBERS.get(type(leaf)) or self._static(leaf) for leaf in leaves)
        shapes = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in self.arrays)
        self.key: Any = (tree, static, shapes, placement)

    def _static(self, leaf: Any) -> "_Static":
        """Return what tells a leaf from others. An array on the host is kept, and something of its shape stands for it."""
        if not is_host_array(leaf):
            return _Static(leaf)
        self.on_host.append(leaf)
        return _Static(HostArray(len(self.on_host) - 1, leaf.shape, leaf.dtype))

    @property
    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes of the inputs."""
        return [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in self.key[2]]

    def arguments(self, inputs: Sequence[Any], numbers: Sequence[Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the function's arguments with these inputs, and with `numbers` in the place of the Python numbers."""
        arrays, rest = iter(inputs), iter(self.numbers if numbers is None else numbers)
        leaves = [next(arrays) if s is ARRAY else next(rest) if isinstance(s, Number) else s.value for s in self.key[1]]
        return jax.tree.unflatten(self.tree, leaves)

    def is_same(self, other: "Signature") -> bool:
        """Return whether another call has the same structure, shapes, numbers and other Python objects."""
        return self.key[:3] == other.key[:3] and [*map(plain_key, self.numbers)] == [*map(plain_key, other.numbers)]

    def is_like(self, key: Any) -> bool:
        """Return whether another key differs at most in Python objects."""
        return (key[0], key[2], key[3]) == (self.key[0], self.key[2], self.key[3])


class _Static:
    """An argument that is part of the signature. Plain Python values compare by value and type, objects by identity."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any):
        self.value = value
        if isinstance(value, PLAIN):
            self._key = plain_key(value)
        else:
            self._key = (type(value), value.key if isinstance(value, HostArray | Held) else id(value))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key
