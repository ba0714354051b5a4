"""The values of a checkpoint: how they are taken to the host, split in arrays and JSON, put together again and compared.

A value is a NumPy array, a Python number or an array of JAX's typed random keys.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._state import Ref
from .._values import Mirrored, PerReplica
from ..errors import ArgumentTypeError

_NUMBER_TYPES = (bool, int, float)  # exactly these: a subclass (np.float64, IntEnum) would come back as something else
_PARSE: dict[str, Any] = {"bool": lambda text: text == "True", "int": int, "float": float}


def check_leaf(key: str, leaf: Any) -> None:
    """Raise ArgumentTypeError unless `leaf` can be part of a checkpoint."""
    if isinstance(leaf, PerReplica):
        raise ArgumentTypeError(
            f"Checkpoint: {key!r} is a PerReplica value, which has no meaning on another number of replicas. "
            "Save strategy.reduce(...) or strategy.gather(...) of it."
        )
    if isinstance(leaf, np.ndarray | np.generic) and _is_storable(leaf.dtype):
        return
    if isinstance(leaf, jax.Array):
        return
    if isinstance(leaf, Mirrored) or type(leaf) in _NUMBER_TYPES:
        return
    dtype = f" of dtype {leaf.dtype}" if isinstance(leaf, np.ndarray | np.generic) else ""
    raise ArgumentTypeError(
        f"Checkpoint: {key!r} is a {type(leaf).__name__}{dtype}, which cannot be saved. Pass Keras models, optimizers, metrics or "
        "seed generators, variables, or dicts, lists and tuples of numeric arrays and of Python numbers."
    )


def _is_storable(dtype: np.dtype) -> bool:
    """Whether the dtype is its bytes and its name, as objects and strings are not."""
    try:
        return not dtype.hasobject and np.dtype(dtype.name) == dtype.newbyteorder("=")
    except TypeError:
        return False


def fetch(item: Any) -> Any:
    """The value of a variable's Ref or of a leaf, in host memory of its own."""
    if isinstance(item, Ref):
        return np.array(item.read_eagerly(), copy=True)
    if isinstance(item, Mirrored):
        return fetch(item.value)
    if isinstance(item, jax.Array) and jnp.issubdtype(item.dtype, jax.dtypes.prng_key):
        return item
    return np.array(item, copy=True) if isinstance(item, jax.Array | np.ndarray | np.generic) else item


def encode(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What JSON holds of the values, and the arrays."""
    numbers, random_keys, arrays = {}, {}, {}
    for key, value in values.items():
        if isinstance(value, np.ndarray):
            arrays[key] = value
        elif isinstance(value, jax.Array):
            arrays[key] = np.array(jax.random.key_data(value), copy=True)
            random_keys[key] = str(jax.random.key_impl(value))
        else:
            numbers[key] = {"type": type(value).__name__, "value": repr(value)}  # repr: exact, and valid JSON for nan
    return {"numbers": numbers, "random_keys": random_keys}, arrays


def decode(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Inverse of encode."""
    values: dict[str, Any] = dict(arrays)
    for key, impl in meta["random_keys"].items():
        values[key] = jax.random.wrap_key_data(jnp.array(arrays[key], copy=True), impl=impl)
    for key, number in meta["numbers"].items():
        values[key] = _PARSE[number["type"]](number["value"])
    return values


def describe(item: Any) -> str:
    """Dtype and shape of a Ref, a leaf or a value, for messages."""
    if type(item) in _NUMBER_TYPES:
        return f"a Python {type(item).__name__}"
    item = item.value if isinstance(item, Mirrored) else item
    return f"{item.dtype}{list(item.shape)}"


def fits(item: Any, value: Any) -> bool:
    """Whether the stored `value` can take the place of a Ref's or leaf's. A Python number stands for any scalar in a container."""
    item = item.value if isinstance(item, Mirrored) else item
    if type(value) in _NUMBER_TYPES or type(item) in _NUMBER_TYPES:
        return not isinstance(item, Ref) and np.shape(item) == np.shape(value)
    return item.dtype == value.dtype and tuple(item.shape) == tuple(value.shape)


def assign(ref: Ref, value: np.ndarray) -> None:
    """Give a variable its stored value. The next step splits and places it."""
    ref.set_raw(jnp.array(value, copy=True), stacked=False)
    ref.expose()


def replaced(leaf: Any, value: Any) -> Any:
    """The stored `value` as what it replaces: in NumPy memory, as JAX array where the old one lay, or as Python number."""
    if type(value) in _NUMBER_TYPES:
        if isinstance(leaf, np.ndarray | np.generic | jax.Array | Mirrored):
            return replaced(leaf, np.asarray(value, dtype=_dtype_of(leaf)))
        return value
    if isinstance(leaf, np.ndarray):
        return np.array(value, copy=True)
    if isinstance(leaf, np.generic):
        return value[()]
    fresh = jnp.array(value, copy=True)
    return jax.device_put(fresh, leaf.sharding) if isinstance(leaf, jax.Array) and leaf.committed else fresh


def _dtype_of(leaf: Any) -> Any:
    return leaf.value.dtype if isinstance(leaf, Mirrored) else leaf.dtype
