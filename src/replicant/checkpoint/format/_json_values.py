"""Nested values as JSON and arrays: numbers, strings, None, arrays, and lists, tuples and dicts of them."""

from typing import Any

import jax
import numpy as np

from ...errors import ArgumentTypeError, DamagedCheckpointError

_PLAIN = (bool, int, float, str, type(None))  # exactly these types, which JSON preserves


def pack(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return what JSON can hold of `value`, and append copies of its arrays to `arrays`.

    Raises:
        ArgumentTypeError: If `value` contains anything else.
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
    raise ArgumentTypeError(f"A {type(value).__name__} cannot be saved: it is not a number, string, array, list, tuple or dict.")


def unpack(packed: Any, arrays: list[np.ndarray]) -> Any:
    """Return the value that was packed; JAX arrays come back as NumPy arrays.

    Raises:
        DamagedCheckpointError: If it is not something that `pack` makes.
    """
    try:
        return _unpacked(packed, arrays)
    except (ValueError, TypeError, IndexError, RecursionError) as error:
        raise DamagedCheckpointError(
            f"The values that were packed with the arrays are damaged ({type(error).__name__}: {error})."
        ) from error


def _unpacked(packed: Any, arrays: list[np.ndarray]) -> Any:
    if type(packed) in _PLAIN:
        return packed
    items: Any = packed.items() if isinstance(packed, dict) else [("nothing that is known", packed)]
    kind: str
    value: Any
    ((kind, value),) = items
    match kind:
        case "array" | "scalar" if _is_index(value):
            return arrays[value] if kind == "array" else arrays[value][()]
        case "dict":
            return {_unpacked(key, arrays): _unpacked(item, arrays) for key, item in value}
        case "list" | "tuple":
            inside = [_unpacked(item, arrays) for item in value]
            return inside if kind == "list" else tuple(inside)
    raise ValueError(f"{kind!r} is not a kind of value")


def _is_index(value: Any) -> bool:
    return type(value) is int and value >= 0
