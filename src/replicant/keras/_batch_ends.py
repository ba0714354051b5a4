"""The end of a batch that no callback listens to costs nothing.

Keras hands each batch's logs to a pool of threads, which wait for the step, copy the logs to the host, and then call callbacks that
do nothing. On few cores the waiting threads take their time from the steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from ._fit import strategy_of

_ENDS = {
    "on_train_batch_end": ("on_train_batch_end", "on_batch_end"),  # the former calls the latter
    "on_test_batch_end": ("on_test_batch_end",),
    "on_predict_batch_end": ("on_predict_batch_end",),
}


def end(original: Callable[..., Any], callbacks: Any, batch: Any, logs: Any = None) -> None:
    """The end of a batch, told to a list of callbacks of which one listens."""
    names = _ENDS[original.__name__]
    model = getattr(callbacks, "_model", None)  # the property `model` would copy the state back into the variables
    if model is None or strategy_of(model) is None or any(_listens(each, names) for each in callbacks.callbacks):
        original(callbacks, batch, logs)


def _listens(callback: Any, names: Sequence[str]) -> bool:
    return any(getattr(getattr(callback, name), "__func__", None) is not vars(keras.callbacks.Callback)[name] for name in names)
