"""Values that exist once per replica.

``PerReplica`` differs by replica, ``Mirrored`` is the same on all. Both are pytrees, so they pass through ``jax.jit``; they have
no arithmetic on purpose: compute on them inside ``strategy.run``, or bring them together with ``strategy.reduce``.

A PerReplica value is *even* when all replicas hold the same shape: one array of shape (replicas, ...), sharded over its first
axis. Otherwise it is *ragged*: a tuple of one value per replica.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from .._display import replicas
from ..errors import ArgumentError, ArgumentTypeError


class DistributedValues:
    """Base of PerReplica and Mirrored."""

    @property
    def values(self) -> tuple[Any, ...]:
        """One value per replica, in replica order."""
        raise NotImplementedError

    @property
    def num_replicas(self) -> int:
        """How many replicas the value has."""
        return len(self.values)

    @property
    def _first_id(self) -> int:
        """The replica that the first of ``values`` belongs to."""
        return 0

    def __repr__(self) -> str:
        rows = ",\n".join(f"  {i}: {value}" for i, value in enumerate(self.values, start=self._first_id))
        return f"{type(self).__name__}:{{\n{rows}\n}}"

    def _repr_html_(self) -> str:
        return replicas(type(self).__name__, self.values, self._first_id)


@jax.tree_util.register_pytree_node_class
class PerReplica(DistributedValues):
    """A value that differs by replica.

    Args:
        values: one value per replica: arrays of any shape and dtype, or any Python objects.

    Semantics: tf.distribute.DistributedValues as returned by ``strategy.run``.

    >>> PerReplica([1, 2])
    PerReplica:{
      0: 1,
      1: 2
    }
    """

    __slots__ = ("_stacked", "_values")

    def __init__(self, values: Sequence[Any]):
        if len(values) == 0:
            raise ArgumentError("PerReplica needs at least one value, got an empty sequence.")
        self._values: tuple[Any, ...] | None = tuple(values)
        self._stacked: Any = None

    @classmethod
    def from_stacked(cls, stacked: Any) -> "PerReplica":
        """The even PerReplica whose replica i holds ``stacked[i]``."""
        new = object.__new__(cls)
        new._values, new._stacked = None, stacked
        return new

    @property
    def stacked(self) -> Any:
        """The array of shape (replicas, ...) of an even value, None for a ragged one."""
        return self._stacked

    @property
    def values(self) -> tuple[Any, ...]:
        """One value per replica, in replica order. Values of an even PerReplica lie on their replica's device.

        Over several workers: those of this worker's replicas, where the values are even or lie on the host.
        """
        if self._values is not None:
            return self._values
        return unstack(self._stacked)

    @property
    def _first_id(self) -> int:
        stacked = self._stacked
        if not isinstance(stacked, jax.Array) or isinstance(stacked, Tracer) or stacked.is_fully_addressable:
            return 0
        return min(shard.index[0].start or 0 for shard in stacked.addressable_shards)  # over several workers: this one's first

    @property
    def num_replicas(self) -> int:
        """How many replicas the value has."""
        return len(self._values) if self._values is not None else self._stacked.shape[0]

    def tree_flatten(self) -> tuple[tuple[Any, ...], bool]:
        """Children and whether the value is even (for JAX)."""
        return ((self._stacked,), True) if self._values is None else (self._values, False)

    @classmethod
    def tree_unflatten(cls, even: bool, children: Sequence[Any]) -> "PerReplica":
        """Inverse of tree_flatten (for JAX)."""
        new = object.__new__(cls)
        new._values, new._stacked = (None, children[0]) if even else (tuple(children), None)
        return new


@jax.tree_util.register_pytree_node_class
class Mirrored(DistributedValues):
    """A value that is the same on all replicas.

    Args:
        value: the common value: an array, usually replicated over the replicas' devices.
        num_replicas: how many replicas share it.

    ``np.asarray(mirrored)`` and ``mirrored.value`` give the common value.

    >>> Mirrored(3.0, num_replicas=2)
    Mirrored:{
      0: 3.0,
      1: 3.0
    }
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._value, dtype=dtype, copy=copy)

    def tree_flatten(self) -> tuple[tuple[Any, ...], int]:
        """Child and number of replicas (for JAX)."""
        return (self._value,), self._num_replicas

    @classmethod
    def tree_unflatten(cls, num_replicas: int, children: Sequence[Any]) -> "Mirrored":
        """Inverse of tree_flatten (for JAX)."""
        return cls(children[0], num_replicas)


class HostArray:
    """Stands, in a trace, for an array that stays on the host (strings, dates): to be handed on, not to be computed with.

    Args:
        position: which of the host's arrays among the arguments.
        shape: of the array.
        dtype: of the array.
    """

    __slots__ = ("dtype", "position", "shape")

    def __init__(self, position: int, shape: tuple[int, ...], dtype: np.dtype):
        self.position, self.shape, self.dtype = position, shape, dtype

    @property
    def key(self) -> tuple[int, tuple[int, ...], np.dtype]:
        """What two of them have in common where one can stand for the other."""
        return self.position, self.shape, self.dtype

    def __repr__(self) -> str:
        return f"<array of {'strings' if self.dtype == object else self.dtype} of shape {self.shape} on the host>"

    def __len__(self) -> int:
        return self.shape[0]

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ArgumentTypeError(
            f"{self!r} passes through `run` and `function` untouched, but nothing can be computed with it there. Turn it into "
            "numbers before: `dataset.map(lookup_layer)`; or use it outside, on what `run` returns."
        )

    __array__ = __getitem__ = __iter__ = __bool__ = __eq__ = __ne__ = __lt__ = __gt__ = __add__ = _refuse
    __hash__ = object.__hash__


def unstack(stacked: Any) -> tuple[Any, ...]:
    """The rows of `stacked`; those of a sharded array stay on their devices. Over several workers: the rows of this one."""
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
    """Whether two replicas have the same Python object, or equal ones of one type."""
    if a is b:
        return True
    return type(a) is type(b) and not is_array(a) and not isinstance(a, HostArray | jax.Array) and bool(a == b)


def is_distributed(value: Any) -> bool:
    """Whether `value` is a PerReplica or Mirrored (for tree functions' ``is_leaf``)."""
    return isinstance(value, DistributedValues)


def is_array(value: Any) -> bool:
    """Whether JAX can compute on `value`: a numeric array, tracer or NumPy scalar; not a Python number, not strings."""
    return isinstance(value, jax.Array) or (isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "OSUMm")


def is_host_array(value: Any) -> bool:
    """Whether `value` is an array that no device can hold: strings, Python objects, dates."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OSUMm"


def map_replicas(fn: Callable[..., Any], value: Any) -> Any:
    """`value` with `fn` applied to every leaf, where PerReplica and Mirrored values count as leaves."""
    return jax.tree.map(fn, value, is_leaf=is_distributed)
