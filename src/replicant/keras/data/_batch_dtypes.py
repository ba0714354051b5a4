"""Gives what Keras reads the dtypes of JAX, and refuses numbers that would become others. On GPUs, Keras places batches itself."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import keras
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError
from ...runtime._jax_dtypes import in_jax_dtypes
from ...runtime._own_memory import own
from ...runtime._usable_arrays import usable

_PARTS = ("x", "y", "sample_weight")


def in_dtypes_of_jax(batch: Any) -> Any:
    """Return a batch, x or (x, y) or (x, y, sample_weight), with its arrays of NumPy in the dtypes that JAX gives them.

    Raises:
        ArgumentError: If a number is beyond that dtype.
    """
    leaves, tree = jax.tree.flatten(batch)
    return tree.unflatten(in_jax_dtypes(leaves, lambda: _names(tree.unflatten(range(len(leaves))))))


def on_batch(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap the methods of a model that take one batch."""
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = {name: bound.arguments[name] for name in _PARTS if name in bound.arguments}
    bound.arguments.update(zip(given, in_dtypes_of_jax(tuple(given.values())), strict=True))
    return original(*bound.args, **bound.kwargs)


def usable_data(data: Any, name: str) -> Any:
    """Return arrays, or a structure of them, as devices take them. Return other kinds of data as they are.

    Raises:
        ArgumentTypeError: If an array is refused; ``name`` and its place name it.
    """
    if not isinstance(data, np.ndarray | np.generic | list | tuple | Mapping):
        return data
    if not any(issubclass(kind, np.ndarray | np.generic) for kind in set(map(type, jax.tree.leaves(data)))):
        return data  # long lists of numbers are common, and naming each takes long

    def leaf(path: Any, value: Any) -> Any:
        return usable(value, lambda why: ArgumentTypeError(f"{name}{jax.tree_util.keystr(path)} {why}"))

    return jax.tree_util.tree_map_with_path(leaf, data)


def own_batch(batch: Any) -> Any:
    """Return a batch of a user's code with copies of its arrays, as devices take them.

    Raises:
        ArgumentTypeError: If an array is refused.
    """
    return usable_data(jax.tree.map(own, batch), "batch")


@contextmanager
def no_overflow(inputs: Any) -> Iterator[None]:
    """Let Keras convert x, (x, y) or (x, y, sample_weight) to its own dtype.

    Raises:
        ArgumentError: If a finite float is beyond ``keras.config.floatx()``.
    """
    with np.errstate(over="raise"):
        try:
            yield
        except FloatingPointError:
            raise ArgumentError(
                f"{_largest(inputs)}, which is beyond {keras.config.floatx()}, the dtype in which Keras computes. Scale or clip "
                "the numbers. Or write keras.config.set_floatx('float64') and jax.config.update('jax_enable_x64', True) where the "
                "program begins."
            ) from None


def _largest(inputs: Any) -> str:
    found = {}
    for name, array in zip(_names(inputs), jax.tree.leaves(inputs), strict=True):
        if getattr(array, "dtype", None) == np.float64:
            sizes = np.abs(np.asarray(array))
            found[name] = sizes.max(where=np.isfinite(sizes), initial=0)
    name = max(found, key=lambda name: found[name])
    return f"{name} holds {found[name]}"


def _names(batch: Any) -> list[str]:
    """Return what Keras calls the leaves of a batch, such as "x['image']"."""
    parts = zip(_PARTS, batch, strict=False) if isinstance(batch, tuple) else [("x", batch)]
    return [
        part + jax.tree_util.keystr(path) for part, leaves in parts for path, _ in jax.tree_util.tree_flatten_with_path(leaves)[0]
    ]
