"""Values that exist once per replica.

A ``PerReplica`` value differs by replica, and a ``Mirrored`` value is the same on all replicas. Both are pytrees, so they pass
through ``jax.jit``. A Mirrored value computes as the array that it holds. A PerReplica value has no arithmetic on purpose: compute
with it inside ``strategy.run``, or combine the values with ``strategy.reduce``.

A PerReplica value is *even* if it is one array of shape (replicas, ...), sharded over its first axis. Otherwise it is *ragged*: a
tuple of one value per replica.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ..errors import ArgumentError, ArgumentTypeError
from ..runtime._plain_values import PLAIN, plain_key
from ._array_like import ArrayLike, NoArray
from ._distributed_values import DistributedValues, is_distributed
from ._own_mesh import handed_over

__all__ = [
    "DistributedValues",
    "HostArray",
    "Mirrored",
    "PerReplica",
    "is_array",
    "is_distributed",
    "is_host_array",
    "is_same_object",
    "map_replicas",
    "unstack",
]


@jax.tree_util.register_pytree_node_class
class PerReplica(DistributedValues, NoArray):
    """A value that differs by replica.

    Semantics: tf.distribute.DistributedValues, as ``strategy.run`` returns it.

    Args:
        values: One value per replica: arrays of any shape and dtype, or any Python objects.

    Raises:
        ArgumentError: If `values` is empty.

    >>> PerReplica([1, 2])
    PerReplica:{
      0: 1,
      1: 2
    }
    """

    __slots__ = ("_stacked", "_values")

    def __init__(self, values: Sequence[Any]):
        if len(values) == 0:
            raise ArgumentError("PerReplica needs at least one value; got an empty sequence. Pass one value per replica.")
        self._values: tuple[Any, ...] | None = tuple(values)
        self._stacked: Any = None

    @classmethod
    def from_stacked(cls, stacked: Any) -> "PerReplica":
        """Make the even PerReplica value in which replica i has ``stacked[i]``."""
        new = object.__new__(cls)
        new._values, new._stacked = None, stacked
        return new

    @property
    def stacked(self) -> Any:
        """The array of shape (replicas, ...) of an even value; None for a ragged one."""
        return self._stacked

    @property
    def values(self) -> tuple[Any, ...]:
        """One value per replica, in replica order. The values of an even PerReplica lie on the devices of their replicas.

        With several workers, an even value and one that lies on the host have only the values of this worker's replicas.
        """
        if self._values is not None:
            return self._values
        return unstack(self._stacked)

    @property
    def _first_id(self) -> int:
        stacked = self._stacked
        if not isinstance(stacked, jax.Array) or isinstance(stacked, Tracer) or stacked.is_fully_addressable:
            return 0
        return min(shard.index[0].start or 0 for shard in stacked.addressable_shards)  # this worker's first replica

    @property
    def num_replicas(self) -> int:
        """The number of replicas that have the value."""
        return len(self._values) if self._values is not None else self._stacked.shape[0]

    def tree_flatten(self) -> tuple[tuple[Any, ...], bool]:
        """Return the children, and whether the value is even (for JAX)."""
        return ((self._stacked,), True) if self._values is None else (self._values, False)

    @classmethod
    def tree_unflatten(cls, even: bool, children: Sequence[Any]) -> "PerReplica":
        """Make the value again from what ``tree_flatten`` returned (for JAX)."""
        new = object.__new__(cls)
        new._values, new._stacked = (None, children[0]) if even else (tuple(children), None)
        return new


@jax.tree_util.register_pytree_node_class
class Mirrored(DistributedValues, ArrayLike):
    """A value that is the same on all replicas.

    Outside ``run``, it computes, converts and prints as the common value, ``mirrored.value``, does. So code that uses what ``run``
    returns does not depend on the number of devices. Like ``jax.Array``, it cannot be hashed, and ``==`` compares the elements. To
    JAX it is a node with an array in it: ``strategy.experimental_local_results(tree)[0]`` is a tree of arrays, which can be
    combined with other trees.

    Args:
        value: The common value: an array, usually replicated over the replicas' devices.
        num_replicas: The number of replicas that share it.

    >>> Mirrored(3.0, num_replicas=2)
    Mirrored:{
      0: 3.0,
      1: 3.0
    }
    >>> f"{Mirrored(3.0, num_replicas=2) / 2:.2f}"
    '1.50'
    """

    __slots__ = ("_num_replicas", "_value")

    def __init__(self, value: Any, num_replicas: int):
        self._value = value
        self._num_replicas = num_replicas

    @property
    def value(self) -> Any:
        """The common value."""
        return self._value

    @property
    def values(self) -> tuple[Any, ...]:
        """The common value, once per replica."""
        return (self._value,) * self._num_replicas

    def _array(self) -> Any:
        return handed_over(self._value)

    def tree_flatten(self) -> tuple[tuple[Any, ...], int]:
        """Return the child, and the number of replicas (for JAX)."""
        return (self._value,), self._num_replicas

    @classmethod
    def tree_unflatten(cls, num_replicas: int, children: Sequence[Any]) -> "Mirrored":
        """Make the value again from what ``tree_flatten`` returned (for JAX)."""
        return cls(children[0], num_replicas)


class HostArray:
    """Stands in a trace for an array that stays on the host (strings, dates). It can be passed on, but not computed with.

    Args:
        position: The index of the array among the arguments that stay on the host.
        shape: The shape of the array.
        dtype: The dtype of the array.
    """

    __slots__ = ("dtype", "position", "shape")

    def __init__(self, position: int, shape: tuple[int, ...], dtype: np.dtype):
        self.position, self.shape, self.dtype = position, shape, dtype

    @property
    def key(self) -> tuple[int, tuple[int, ...], np.dtype]:
        """What must be equal for one of them to stand for another."""
        return self.position, self.shape, self.dtype

    def __repr__(self) -> str:
        return f"<array of {'strings' if self.dtype == object else self.dtype} of shape {self.shape} on the host>"

    def __len__(self) -> int:
        return self.shape[0]

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentTypeError(
            f"{self!r} passes through `run` and `function` unchanged, but nothing can be computed with it there. Convert it to "
            "numbers first, as with `dataset.map(lookup_layer)`, or use it outside, on what `run` returns."
        )

    __array__ = __getitem__ = __iter__ = __bool__ = __eq__ = __ne__ = __lt__ = __gt__ = __add__ = _refuse
    __hash__ = object.__hash__


def unstack(stacked: Any) -> tuple[Any, ...]:
    """Return the rows of `stacked`, which stay on their devices. With several workers, return the rows of this one."""
    if isinstance(stacked, jax.Array) and not isinstance(stacked, Tracer):
        rows: dict[int, Any] = {}
        for shard in stacked.addressable_shards:
            start = shard.index[0].start or 0
            if shard.data.shape[0] == 1:
                rows.setdefault(start, shard.data)
        if len(rows) == stacked.shape[0] or not stacked.is_fully_addressable:
            return tuple(rows[i].reshape(stacked.shape[1:]) for i in sorted(rows))
    return tuple(stacked[i] for i in range(stacked.shape[0]))


def is_same_object(a: Any, b: Any) -> bool:
    """Whether the Python objects of two replicas are the same object, or equal objects of one type."""
    if a is b:
        return True
    if type(a) is not type(b) or is_array(a) or isinstance(a, HostArray | jax.Array):
        return False
    return plain_key(a) == plain_key(b) if type(a) in PLAIN else bool(a == b)


def is_array(value: Any) -> bool:
    """Whether JAX can compute with `value`: a numeric array, tracer or NumPy scalar, but no Python number and no strings."""
    return isinstance(value, jax.Array) or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OSUMm")


def is_host_array(value: Any) -> bool:
    """Whether `value` is an array that no device can hold: strings, Python objects, dates."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OSUMm"


def map_replicas(fn: Callable[..., Any], value: Any) -> Any:
    """Apply `fn` to every leaf of `value`, with PerReplica and Mirrored values as leaves."""
    return jax.tree.map(fn, value, is_leaf=is_distributed)
