"""Gives data on the host the dtypes in which JAX computes, if no value is lost.

Unless ``jax_enable_x64`` is set, these have 32 bits. JAX itself takes the low bits of an integer that is too large, and infinity
for such a float, and says nothing.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from ._usable_arrays import usable

_BYTES = 4  # of the largest dtypes that JAX always has
_OF_NUMPY = (np.ndarray, np.generic)


def in_jax_dtype(
    x: Any,
    name: Callable[[], str],
    *,
    to: Any = None,
    error: type[ValueError] = ArgumentError,
    mend: str = "before you pass it",
) -> Any:
    """Return an array or scalar of NumPy in the dtype that JAX gives it, as `usable` does. Return anything else as it is.

    Args:
        x: The array. One whose dtype JAX has is not copied.
        name: Returns what the array is, for an error.
        to: The dtype to which it will be converted; None if it will not be. Integers become floats of it at once.
        error: The class of the error about a value.
        mend: Where the user can make the values smaller.

    Raises:
        ArgumentTypeError: If devices have no such arrays.
        ValueError: Of class `error`, if a value is beyond that dtype.

    >>> in_jax_dtype(np.array([1, 2]), lambda: "ids").dtype
    dtype('int32')
    >>> in_jax_dtype(np.array([1, 1_700_000_000_123]), lambda: "ids")
    Traceback (most recent call last):
    replicant.errors.ArgumentError: ids: 1700000000123 at [1], of int64, is beyond int32 ...
    """
    x = usable(x, lambda why: ArgumentTypeError(f"{name()} {why}"))
    if not isinstance(x, _OF_NUMPY) or x.dtype.itemsize <= _BYTES or x.dtype.kind not in "iufc":
        return x
    dtype = jax.dtypes.canonicalize_dtype(x.dtype)
    if to is not None and x.dtype.kind in "iu" and jax.numpy.issubdtype(to, jax.numpy.inexact):
        dtype = np.dtype(to)
    if dtype == x.dtype:
        return x
    found = _integers(x, dtype) if dtype.kind in "iu" else _floats(x, dtype)
    if found is None:
        raise error(_problem(x, dtype, name(), mend))
    return found


def in_jax_dtypes(leaves: Sequence[Any], names: Callable[[], Sequence[str]]) -> list[Any]:
    """Return a list with what `in_jax_dtype` makes of each value. `names` returns what they are."""
    return [in_jax_dtype(x, lambda i=i: names()[i]) if isinstance(x, _OF_NUMPY) else x for i, x in enumerate(leaves)]


def _integers(x: Any, dtype: np.dtype) -> Any:
    if x.size:
        low, high = _limits(dtype)
        if not (np.maximum.reduce(x, axis=None) <= high and np.minimum.reduce(x, axis=None) >= low):
            return None
    return x.astype(dtype)


@functools.lru_cache(maxsize=8)
def _limits(dtype: np.dtype) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _floats(x: Any, dtype: np.dtype) -> Any:
    with np.errstate(over="raise", under="ignore", invalid="ignore"):
        try:
            return x.astype(dtype)
        except FloatingPointError:
            return None


def _problem(x: Any, dtype: np.dtype, name: str, mend: str) -> str:
    if dtype.kind in "iu":
        limits: Any = np.iinfo(dtype)
        bad = (x > limits.max) | (x < limits.min)
        smaller = "hash them or split them into two integers"
    else:
        limits = np.finfo(dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            bad = np.isinf(x.astype(dtype)) & ~np.isinf(x)
        smaller = "scale or clip them"
    first = np.argwhere(bad)[0]
    place = f" at [{', '.join(map(str, first))}]" if x.ndim else ""
    return (
        f"{name}: {x[tuple(first)]}{place}, of {x.dtype}, is beyond {dtype} ({limits.min!s} to {limits.max!s}), the dtype in which "
        "JAX computes. Write jax.config.update('jax_enable_x64', True) where the program begins, so that JAX has 64 bits. Or "
        f"{smaller} {mend}."
    )
