"""Warns of a ``fit`` that goes on from a file of Keras: such files hold the optimizer's state, and not that of random seeds."""

import warnings
import weakref
from typing import Any

import numpy as np

from .._internals import SeedGenerator

_fitted: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_of_lost_seeds(model: Any) -> None:
    """Warn if a model's optimizer has taken steps, none of them here, and all its random seeds are at their beginning."""
    known = model in _fitted
    _fitted.add(model)
    if not model.built:  # no file of Keras, but a Checkpoint, whose seeds wait for the layers that the first step builds
        return
    steps = 0 if known or getattr(model, "optimizer", None) is None else int(np.asarray(model.optimizer.iterations))
    seeds = _seeds_of(model) if steps else {}
    if seeds and not any(int(np.asarray(seed.state.value)[1]) for seed in seeds.values()):
        named, more = ", ".join([*seeds][:3]), "" if len(seeds) <= 3 else f" and {len(seeds) - 3} more"
        warnings.warn(
            f"fit of {model.name!r} goes on after {steps} steps, but the random seeds of {named}{more} begin anew: "
            "files of Keras (.keras, .weights.h5) do not hold them. So it draws other numbers than a training that was not "
            "interrupted, or those of the first steps again. Save with replicant.Checkpoint or "
            "replicant.keras.callbacks.BackupAndRestore, which hold the seeds.",
            stacklevel=6,
        )


def _seeds_of(model: Any) -> dict[str, Any]:
    """The seed generators of a model's layers, by the name of the layer."""
    found: dict[str, Any] = {}
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            if isinstance(value, SeedGenerator) and value not in found.values() and getattr(layer, "rate", 1):
                found[layer.name] = value
    return found
