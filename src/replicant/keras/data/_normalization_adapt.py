"""``Normalization.adapt`` with a Replicant dataset, whose batches are read one after the other."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import DatasetError
from ...input._dataset import Dataset

_ROWS = 128  # of a batch that is made here, as in Keras: a dataset of single rows is not batched


def adapt(original: Callable[..., None], layer: Any, data: Any) -> None:
    """Let the layer learn mean and variance. Keras itself computes those of each batch, and they are put together here."""
    if not isinstance(data, Dataset):
        original(layer, data)
        return
    found: tuple[int, Any, Any] | None = None
    are_rows = all(np.ndim(_inputs(element)) < 2 for element in data.take(1))
    for element in data.batch(_ROWS) if are_rows else data:
        batch = np.asarray(_inputs(element))
        original(layer, batch)
        mean, variance = (np.asarray(part, np.float64) for part in (layer.adapt_mean, layer.adapt_variance))
        found = _together(found, (batch.size // max(1, mean.size), mean, variance))
    if found is None:
        raise DatasetError(f"{data!r} yields no batch, so there is nothing to adapt the layer {layer.name!r} to.")
    _, mean, variance = found
    layer.adapt_mean.assign(mean)
    layer.adapt_variance.assign(variance)
    layer.finalize_state()


def _inputs(element: Any) -> Any:
    return element[0] if isinstance(element, tuple) else element


def _together(first: tuple[int, Any, Any] | None, second: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
    """Return count, mean and variance of two sets of values together."""
    if first is None:
        return second
    (m, mean, variance), (n, other_mean, other_variance) = first, second
    share = n / (m + n)
    apart = other_mean - mean
    return m + n, mean + share * apart, (1 - share) * variance + share * other_variance + share * (1 - share) * apart**2
