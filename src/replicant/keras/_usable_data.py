"""Arrays that are given to Keras's loops: those that mean something else on a device, such as masked arrays, are refused."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentTypeError
from ..runtime._own_memory import own
from ..runtime._usable_arrays import usable


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


def loop(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a method of a model that takes one batch of arrays."""
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    for name in ("x", "y", "sample_weight"):
        if name in bound.arguments:
            bound.arguments[name] = usable_data(bound.arguments[name], name)
    return original(*bound.args, **bound.kwargs)
