"""Small variables of a program in one array, because each array that a program overwrites takes JAX some microseconds.

While a variable lies in such a pack, its holder has no ``_value``. Whoever reads that gets a copy, which is made then (`stored`).
Whoever sets it simply does so: the next run of the program finds it, and packs it again.
"""

import itertools
import math
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from ..replicas._quick_put import is_guarded, put_now, quick_put


class Pack:
    """An array of unsigned integers with the bits of several variables, one after the other.

    Args:
        specs: The shapes and dtypes of the variables. All dtypes are of the same size.
        home: Where the array lies.
        lock: Is held while a program overwrites the array, and while a variable enters or leaves the pack.
    """

    def __init__(self, specs: Sequence[tuple[tuple[int, ...], np.dtype]], home: Sharding, lock: threading.RLock):
        self.specs, self.lock = specs, lock
        self._home, self._quick_put = home, quick_put(home)
        self._dtype = np.dtype(f"uint{8 * specs[0][1].itemsize}")
        self._starts = [0, *itertools.accumulate(math.prod(shape) for shape, _ in specs)]
        self.array: Any = None
        self.shown: dict[int, Any] = {}  # the arrays that holders have got since the last run
        self.is_whole = True  # until a variable is in another pack

    def cut(self, array: jax.Array) -> list[jax.Array]:
        """Return the values of all variables, in a trace."""
        parts = [array[start:end] for start, end in itertools.pairwise(self._starts)]
        return [
            jax.lax.bitcast_convert_type(part, dtype).reshape(shape) for part, (shape, dtype) in zip(parts, self.specs, strict=True)
        ]

    def join(self, values: Sequence[jax.Array]) -> jax.Array:
        """Do the opposite of `cut`, in a trace."""
        return jnp.concatenate([jax.lax.bitcast_convert_type(value, self._dtype).reshape(-1) for value in values])

    def _part(self, host: np.ndarray, index: int) -> np.ndarray:
        shape, dtype = self.specs[index]
        return host[self._starts[index] : self._starts[index + 1]].view(dtype).reshape(shape)

    def with_values(self, values: dict[int, Any]) -> jax.Array:
        """Return what the array would be with some other values."""
        keeps = len(values) < len(self.specs)
        host = np.array(self.array, copy=True) if keeps else np.empty(self._starts[-1], self._dtype)  # a view would stop donation
        for i, value in values.items():
            self._part(host, i)[...] = value
        return self._put(host)

    def _put(self, array: np.ndarray) -> jax.Array:
        if self._quick_put is None or is_guarded():
            return put_now(array, self._home)
        return self._quick_put([array], array.shape, array.dtype)[0]

    def show(self, index: int) -> jax.Array:
        """Return a copy of one value."""
        value = np.array(self._part(np.array(self.array, copy=True), index), copy=True)
        self.shown[index] = array = self._put(value)
        return array


def stored(ref: Any, owner: Any, name: str) -> Any:
    """Give the holder of a `Ref` the `_value` that it lacks because the variable lies in a pack.

    Raises:
        AttributeError: If another attribute is missing, or the variable lies in no pack.
    """
    while name == "_value" and (place := ref.place) is not None:
        pack, index = place
        with pack.lock:
            if ref.place is place:  # else it is in another pack by now
                held = ref.holder.__dict__
                if "_value" not in held:
                    ref.holder._value = pack.show(index)  # noqa: SLF001 - see Holder
                return held["_value"]
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}", name=name, obj=owner)
