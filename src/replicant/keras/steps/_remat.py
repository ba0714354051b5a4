"""Keras's own remat, which computes inner values of a function again for the backward pass."""

from typing import Any

from ..._remat import remat


def rematerialized(original: Any, f: Any) -> Any:
    """Make a function whose inner values are computed again for the backward pass, with all that `replicant.remat` can."""
    del original
    return remat(f)
