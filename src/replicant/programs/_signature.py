"""Tells which program a call needs: arrays (and some numbers) are its inputs, and everything else is part of a key."""

import enum
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..replicas._placement import Placement
from ..replicas._values import HostArray, is_array, is_host_array
from ._held import Held
from ._numbers import dtype_of


class _Array:
    def __repr__(self) -> str:
        return "<array>"


ARRAY = _Array()


class Signature:
    """One call's arguments, separated into the inputs of a program and the key that tells which program they need.

    Args:
        leaves: The leaves of the arguments.
        tree: The structure of the arguments.
        numbers: The positions, among the leaves, of the Python numbers that are inputs.
        placement: The devices.
    """

    __slots__ = ("arrays", "key", "number_inputs", "numbers", "on_host", "placement", "tree")

    def __init__(self, leaves: Sequence[Any], tree: Any, numbers: tuple[int, ...], placement: Placement):
        self.tree, self.numbers, self.placement = tree, numbers, placement
        self.on_host: list[Any] = []
        self.number_inputs: list[int] = []  # the positions of the numbers among the arrays
        on_host = self.on_host
        if numbers:
            self.arrays = [x for i, x in enumerate(leaves) if is_array(x) or i in numbers]
            static = tuple(ARRAY if is_array(x) or i in numbers else _Static(_stand_in(x, on_host)) for i, x in enumerate(leaves))
            self.number_inputs = [i for i, x in enumerate(self.arrays) if not is_array(x)]
            shapes = tuple(
                ((), dtype_of(x), True) if type(x) in (int, float) else (x.shape, x.dtype, getattr(x, "weak_type", False))
                for x in self.arrays
            )
        else:
            self.arrays = [leaf for leaf in leaves if is_array(leaf)]
            static = tuple(ARRAY if is_array(leaf) else _Static(_stand_in(leaf, on_host)) for leaf in leaves)
            shapes = tuple((x.shape, x.dtype, getattr(x, "weak_type", False)) for x in self.arrays)
        self.key: Any = (tree, static, shapes, placement)

    @property
    def avals(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes of the inputs, in the dtypes that JAX computes with: from 0.12 on, it warns of others."""
        shapes = [
            (shape, jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True), weak) for shape, dtype, weak in self.key[2]
        ]
        return [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in shapes]

    def arguments(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the function's arguments with these inputs."""
        rest = iter(inputs)
        return jax.tree.unflatten(self.tree, [next(rest) if s is ARRAY else s.value for s in self.key[1]])

    def is_like(self, key: Any) -> bool:
        """Return whether another key differs at most in Python objects."""
        return (key[0], key[2], key[3]) == (self.key[0], self.key[2], self.key[3])


_BY_VALUE = (bool, int, float, complex, str, bytes, type(None), enum.Enum, np.dtype)


def _stand_in(leaf: Any, on_host: list[Any]) -> Any:
    """Add an array on the host to `on_host`, and return what replaces it in the signature. Return other leaves as they are."""
    if not is_host_array(leaf):
        return leaf
    on_host.append(leaf)
    return HostArray(len(on_host) - 1, leaf.shape, leaf.dtype)


class _Static:
    """An argument that is part of the signature. Plain Python values compare by value and type, objects by identity."""

    __slots__ = ("_key", "value")

    def __init__(self, value: Any):
        self.value = value
        self._key = (
            type(value),
            value.key if isinstance(value, HostArray | Held) else value if isinstance(value, _BY_VALUE) else id(value),
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key
