"""Decides which kernels are on. This is part of the key of JAX's compiled programs, so that switching compiles them again."""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax

from ..errors import ConfigurationError

VARIABLE = "REPLICANT_KERNELS"

# The families of lowerings, four that take the place of what Keras traces ("attention", "flat_update", "lstm" and "numba_norm"),
# one that says where programs run ("inline"), and two options: "conv" is XLA's (see xla/_flags.py), and "memory" the allocator's
# (see xla/_heap.py).
FAMILIES = {
    "argmax": "argmax and argmin over many elements, as a maximum and its first position",
    "attention": "Keras's attention with many scores, whose derivative passes over them less often",
    "conv": "convolutions and their gradients by Eigen instead of YNNPACK",
    "direct_conv": "depthwise convolutions, and those of few channels, as sums of shifted arrays",
    "dot": "products of matrices whose first axes meet, as gradients of weights are, in the form that XLA is fast at",
    "flat_update": "Adam's updates of variables with short rows, as of flat arrays",
    "inline": "small and large programs run in the thread that starts them",
    "lstm": "Keras's LSTM, whose gradients of weights are made outside of the loop over time",
    "memory": "memory of large temporary arrays is kept from step to step",
    "numba_conv": "convolutions and their gradients by a function that numba compiles",
    "numba_dot": "products of matrices by a function that numba compiles",
    "numba_norm": "the sums of BatchNormalization by a function that numba compiles, which passes over arrays less often",
    "numba_lstm": "the loops over time of lstm by a function that numba compiles",
    "max_pool": "max pooling and its gradient, without a scatter",
    "strided_conv": "transposed convolutions, and gradients of strided ones, without products with zeros",
    "avg_pool": "sums over windows (average pooling and its gradient), as additions of slices",
}
LOWERINGS = frozenset(FAMILIES) - {"conv", "memory"}


def from_environment() -> frozenset[str]:
    """The kernels that REPLICANT_KERNELS asks for: names, separated by commas. "0" means none, and "1" all.

    Raises:
        ConfigurationError: If the variable names a kernel that does not exist.
    """
    text = os.environ.get(VARIABLE, "1").strip()
    if text == "0":
        return frozenset()
    names = _names(text)
    if unknown := sorted(names - set(FAMILIES) - {"1"}):
        raise ConfigurationError(
            f"{VARIABLE}={text!r}: there is no kernel {', '.join(map(repr, unknown))}. Set it to 0 (none), 1 (all) or "
            f"some of {','.join(sorted(FAMILIES))}, separated by commas."
        )
    return frozenset(FAMILIES) if "1" in names else names


def is_named(name: str) -> bool:
    """Whether REPLICANT_KERNELS itself names a kernel."""
    return name in _names(os.environ.get(VARIABLE, ""))


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(","))


# This is part of JAX's cache keys for traces and programs.
_on = jax.make_user_context(frozenset())


def is_on(family: str) -> bool:
    """Whether a family is on in this thread, at this moment."""
    return family in _on.value


def chosen() -> frozenset[str]:
    """The families of lowerings that are on in this thread, at this moment."""
    return _on.value


def choose(names: Iterable[str]) -> None:
    """Switch on exactly these families in all threads, except within a `choose_here`."""
    _on.set_global(frozenset(names))


def chosen_everywhere() -> frozenset[str]:
    """The families that were last passed to `choose`."""
    return _on.get_global()


def choose_here(names: Iterable[str]) -> AbstractContextManager[Any]:
    """Switch on exactly these families within the ``with`` block, in this thread."""
    return _on(frozenset(names))
