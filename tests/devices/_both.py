"""Compares a function with a kernel that numba compiles, and without it."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicant import kernels


def both(family: str, target: str, function: Callable[..., Any], *args: Any) -> Any:
    """The results of a jitted function with the kernel and without it, and how often it calls the compiled function."""
    jitted = jax.jit(functools.partial(function))  # not `function`, or what was lowered for another test is used again
    with kernels.disabled(family):
        plain = jitted(*args)
    return jitted(*args), plain, jitted.lower(*args).as_text().count(f"@{target}(")


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Compare with the largest number of each array."""
    for mine, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        largest = float(np.abs(theirs).max(initial=0))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * max(largest, 1e-3))
