"""Checks shapes, dtypes and ranges of random numbers."""

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentError, ArgumentTypeError


def parse_shape(shape: Any, what: str) -> tuple[int, ...]:
    """Return a shape as a tuple.

    Raises:
        ArgumentError: If one of the integers is negative.
        ArgumentTypeError: If it is not a list of integers.
    """
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError as error:
        raise ArgumentTypeError(f"{what} takes a shape, such as (2, 3), or () for one number; got {shape!r}.") from error
    if any(size < 0 for size in sizes):
        raise ArgumentError(f"{what} takes a shape without negative sizes, such as (2, 3); got {sizes}.")
    return sizes


def float_dtype(dtype: Any, what: str) -> np.dtype:
    """Return a dtype that JAX computes with.

    Raises:
        ArgumentTypeError: If it is not a float dtype.
    """
    if not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise ArgumentTypeError(f"{what} draws floats; got the dtype {jnp.dtype(dtype)}.")
    return jax.dtypes.canonicalize_dtype(dtype)


def int_dtype(dtype: Any, what: str) -> np.dtype:
    """Return a dtype that JAX computes with.

    Raises:
        ArgumentTypeError: If it is not an integer dtype.
    """
    if not jnp.issubdtype(jnp.dtype(dtype), jnp.integer):
        raise ArgumentTypeError(f"{what} draws integers; got the dtype {jnp.dtype(dtype)}.")
    return jax.dtypes.canonicalize_dtype(dtype)


def in_order(minval: Any, maxval: Any, *, equal: bool) -> None:
    """Raise ArgumentError if two Python numbers do not make a range. `equal` says whether they may be equal."""
    numbers = isinstance(minval, int | float) and isinstance(maxval, int | float)
    if numbers and not (minval <= maxval if equal else minval < maxval):
        raise ArgumentError(
            f"uniform draws from minval up to maxval; got minval={minval} and maxval={maxval}. Make maxval the larger one."
        )


def within(value: Any, dtype: np.dtype, what: str) -> None:
    """Raise ArgumentError if a Python number is not one of a dtype."""
    limits = jnp.iinfo(dtype)
    if isinstance(value, int) and not limits.min <= value <= limits.max:
        raise ArgumentError(
            f"uniform: {what}={value} does not fit {dtype}, whose numbers go from {limits.min} to {limits.max}. 64 bits need "
            "jax_enable_x64."
        )
