"""What layers assign in the micro-batches of a batch: the states of random numbers, moving statistics, and what else they keep."""

import warnings
from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
import keras

from ...errors import ReductionWarning


def seeds_of(model: Any) -> frozenset[int]:
    """Return which of a model's variables that are not trained are states of random numbers.

    All replicas draw equally often, so these states are the same on all of them.
    """
    return frozenset(i for i, variable in enumerate(model.non_trainable_variables) if variable.name == "seed_generator_state")


def tell_state(model: Any, changed: Collection[int]) -> None:
    """Warn of variables that layers assign in each micro-batch, but for those of which others tell."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    known = {id(variable) for layer in layers for variable in layer.variables}
    for i in sorted({*changed} - seeds_of(model)):
        variable = model.non_trainable_variables[i]
        if id(variable) in known:
            continue
        kept = "the mean of what they have" if jnp.issubdtype(variable.dtype, jnp.inexact) else "what the first one has"
        warnings.warn(
            f"{variable.path!r} is assigned in each micro-batch of each replica (accumulate_steps), and the replicas keep {kept}, "
            "so its value is not that of the whole batch. Assign it between batches, in a callback, or use whole batches.",
            ReductionWarning,
            stacklevel=2,
        )
