"""Skips the end-of-batch hooks when no callback implements them.

Keras hands each batch's logs to a pool of threads. They wait for the step, copy the logs to the host and call callbacks, even if
these do nothing. On few cores, the waiting threads slow the steps down.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import keras

from ...cluster.wire import _supervisor
from ..state._owner import strategy_of

_ENDS = {
    "on_train_batch_end": ("on_train_batch_end", "on_batch_end"),  # the former calls the latter
    "on_test_batch_end": ("on_test_batch_end",),
    "on_predict_batch_end": ("on_predict_batch_end",),
}


def end(original: Callable[..., Any], callbacks: Any, batch: Any, logs: Any = None) -> None:
    """Tell the callbacks of the end of a batch, if one of them listens."""
    names = _ENDS[original.__name__]
    model = getattr(callbacks, "_model", None)  # the property `model` would copy the state back into the variables
    listening = [each for each in callbacks.callbacks if _listens(each, names)]
    if model is None or strategy_of(model) is None or listening:
        if _supervisor.is_watched() and not all(getattr(each, "async_safe", False) for each in listening):
            _wait_for(logs)
        original(callbacks, batch, logs)


def _wait_for(logs: Any) -> None:
    """Wait for a step, as Keras is about to do, and note for how long: that is not this worker's own time."""
    began = time.monotonic()
    jax.block_until_ready(logs)
    _supervisor.waited(time.monotonic() - began)


def _listens(callback: Any, names: Sequence[str]) -> bool:
    return any(getattr(getattr(callback, name), "__func__", None) is not vars(keras.callbacks.Callback)[name] for name in names)
