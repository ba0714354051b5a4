"""Nested values as JSON and arrays: numbers, strings, None, arrays, and lists, tuples and dicts of them."""

from typing import Any

import jax
import numpy as np

from ..errors import ArgumentTypeError

_PLAIN = (bool, int, float, str, type(None))  # exactly these, as JSON gives them back


def pack(value: Any, arrays: list[np.ndarray]) -> Any:
    """What JSON holds of `value`; its arrays are appended to `arrays`, copied.

    Raises ArgumentTypeError for anything else.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array) and not np.dtype(value.dtype).hasobject:
        arrays.append(np.array(value, copy=True))
        return {"scalar" if isinstance(value, np.generic) else "array": len(arrays) - 1}
    if type(value) is list or type(value) is tuple:
        return {type(value).__name__: [pack(item, arrays) for item in value]}
    if type(value) is dict:
        return {"dict": [[pack(key, arrays), pack(item, arrays)] for key, item in value.items()]}
    raise ArgumentTypeError(f"A {type(value).__name__} cannot be saved: it is no number, string, array, list, tuple or dict.")


def unpack(packed: Any, arrays: list[np.ndarray]) -> Any:
    """Inverse of pack; JAX arrays come back as NumPy's."""
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = packed.items()
    match kind:
        case "array":
            return arrays[value]
        case "scalar":
            return arrays[value][()]
        case "dict":
            return {unpack(key, arrays): unpack(item, arrays) for key, item in value}
        case _:
            items = [unpack(item, arrays) for item in value]
            return items if kind == "list" else tuple(items)
