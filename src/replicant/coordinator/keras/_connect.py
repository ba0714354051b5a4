"""Connects Keras to parameter servers, in every process of a cluster."""

import functools
import threading
from typing import Any

import keras

from ...keras import _hook, _hooks, _internals
from ..servers._shares import reduced
from . import _evaluate, _fit, _optimizers, _pickling, _variables

_lock = threading.Lock()


def connect() -> None:
    """Wrap the methods of Keras, once. Any thread may call this."""
    with _lock:
        _connect_once()


@functools.cache
def _connect_once() -> None:
    optimizer = _internals.BaseOptimizer
    wrappers: dict[tuple[Any, str], Any] = {
        (_internals.KerasVariable, "__init__"): _variables.created,
        (_internals.KerasVariable, "_deferred_initialize"): _variables.initialized_late,
        (keras.layers.Embedding, "call"): _variables.embed,
        (optimizer, "__init__"): _optimizers.made_optimizer,
        (optimizer, "add_variable_from_reference"): _variables.placed_beside,
        (optimizer, "apply"): _optimizers.apply,
        (_internals.LossScaleOptimizer, "apply"): _optimizers.apply_scaled,  # it overrides `apply`
        (_internals.loss_module, "reduce_weighted_values"): reduced,
        (_internals.JAXTrainer, "fit"): _fit.fit,
        (_internals.JAXTrainer, "evaluate"): _evaluate.evaluate,
    }
    _hooks.fill(_hook.Slot.SERVERS, wrappers)
    _pickling.register()
