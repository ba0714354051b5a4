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
import numpy as np

from ..kernels._pack import Specs, cut, dtype_of, join
from ..replicas._placement import Placement
from ..replicas._quick_put import is_guarded, put_now, quick_put


class Pack:
    """An array of unsigned integers with the bits of several variables, one after the other.

    Args:
        specs: The shapes and dtypes of the variables. All dtypes are of the same size.
        placement: The one device where the array lies.
        lock: Is held while a program overwrites the array, and while a variable enters or leaves the pack.
    """

    def __init__(self, specs: Specs, placement: Placement, lock: threading.RLock):
        home = placement.mirrored
        assert home is not None, "the strategy has a device"
        self.specs, self.placement, self.lock = specs, placement, lock
        self._home, self._quick_put, self._dtype = home, quick_put(home), dtype_of(specs)
        self._starts = [0, *itertools.accumulate(math.prod(shape) for shape, _ in specs)]
        self.array: Any = None
        self._copied: tuple[Any, Any] = (None, None)  # an array that was the pack's, and what it holds
        self.shown: dict[int, Any] = {}  # the arrays that holders have got since the last run
        self.missing = set(range(len(specs)))  # the variables that lie elsewhere

    def cut(self, array: jax.Array) -> list[jax.Array]:
        """Return the values of all variables, in a trace."""
        return cut(array, self.specs)

    def join(self, values: Sequence[jax.Array]) -> jax.Array:
        """Do the opposite of `cut`, in a trace."""
        return join(values, self.specs)

    def _part(self, host: np.ndarray, index: int) -> np.ndarray:
        shape, dtype = self.specs[index]
        return host[self._starts[index] : self._starts[index + 1]].view(dtype).reshape(shape)

    def part(self, index: int) -> np.ndarray:
        """Return one value on the host, which is not to be changed."""
        if self._copied[0] is not self.array:
            self._copied = self.array, np.array(self.array, copy=True)  # a view would stop donation
        return self._part(self._copied[1], index)

    def with_values(self, values: dict[int, Any]) -> jax.Array:
        """Return what the array would be with some other values."""
        keeps = len(values) < len(self.specs)
        host = np.array(self.array, copy=True) if keeps else np.empty(self._starts[-1], self._dtype)
        for i, value in values.items():
            self._part(host, i)[...] = value
        return self._put(host)

    def _put(self, array: np.ndarray) -> jax.Array:
        if self._quick_put is None or is_guarded():
            return put_now(array, self._home)
        return self._quick_put([array], array.shape, array.dtype)[0]

    def show(self, index: int) -> jax.Array:
        """Return a copy of one value."""
        return self._put(np.array(self.part(index), copy=True))


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
                return held["_value"] if "_value" in held else hand_over(ref, pack, index, pack.show(index))
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}", name=name, obj=owner)


def hand_over(ref: Any, pack: Pack, index: int, array: jax.Array) -> Any:
    """Let the holder of a variable have a copy of its value in a pack, which nobody else has. Returns what the holder has then.

    The lock of the pack must be held.
    """
    value = ref.holder.__dict__.setdefault("_value", array)  # another thread may have assigned another one
    if value is array:
        pack.shown[index] = ref.owned = array
        ref.owned_on = pack.placement
    return value
