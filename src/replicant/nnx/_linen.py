"""Connects the normalization layers of Flax Linen, which have the same batch statistics as those of NNX; see `_statistics`."""

import functools
from typing import Any

from flax.linen import normalization

from ._statistics import compute_stats

_original = normalization._compute_stats


@functools.wraps(_original)
def _compute_stats(*args: Any, **kwargs: Any) -> Any:
    return compute_stats(_original, *args, **kwargs)


normalization._compute_stats = _compute_stats
