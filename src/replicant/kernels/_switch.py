"""Which kernels are on. JAX keys its compiled programs with the answer, so that switching compiles anew."""

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import jax

from ..errors import ConfigurationError

VARIABLE = "REPLICANT_KERNELS"

# Families of lowerings, and two others: "conv" is an option of XLA, see _flags.py, and "memory" the allocator's, see _memory.py.
FAMILIES = {
    "conv": "convolutions and their gradients by Eigen instead of YNNPACK",
    "direct_conv": "depthwise convolutions, and those of few channels, as sums of shifted arrays",
    "memory": "memory of large temporary arrays is kept from step to step",
    "max_pool": "max pooling and its gradient, without a scatter",
    "avg_pool": "sums over windows (average pooling and its gradient), as additions of slices",
}
LOWERINGS = frozenset(FAMILIES) - {"conv", "memory"}
DEFAULT = frozenset(FAMILIES) - {"memory"}  # which makes compiling and very small steps slower


def from_environment() -> frozenset[str]:
    """What REPLICANT_KERNELS asks for: none if it is "0", else the names in it, separated by commas; "1": those of DEFAULT."""
    text = os.environ.get(VARIABLE, "1").strip()
    if text == "0":
        return frozenset()
    names = frozenset(name.strip() for name in text.split(","))
    if "1" in names:
        names = names - {"1"} | DEFAULT
    if unknown := sorted(names - set(FAMILIES)):
        raise ConfigurationError(
            f"{VARIABLE}={text!r}: there is no kernel {', '.join(map(repr, unknown))}. Set it to 0 (none), 1 (all but memory) or "
            f"some of {','.join(['1', *sorted(FAMILIES)])}, separated by commas."
        )
    return names


# Part of JAX's cache keys for traces and programs.
_on = jax.make_user_context(frozenset())


def is_on(family: str) -> bool:
    """Whether a family is switched on, here and now."""
    return family in _on.value


def chosen() -> frozenset[str]:
    """The families of lowerings that are on, here and now."""
    return _on.value


def choose(names: Iterable[str]) -> None:
    """Switch exactly these on, in all threads (but not within a `choose_here`)."""
    _on.set_global(frozenset(names))


def chosen_everywhere() -> frozenset[str]:
    """What was last given to `choose`."""
    return _on.get_global()


def choose_here(names: Iterable[str]) -> AbstractContextManager[Any]:
    """Switch exactly these on within the ``with`` block and in this thread."""
    return _on(frozenset(names))
