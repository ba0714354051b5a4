"""The attributes of Keras objects, and the settings of Keras, that a compiled step depends on."""

import inspect
from collections.abc import Callable
from typing import Any

import keras

_SETTINGS = ("keras.config.dtype_policy()", "keras.config.floatx()", "keras.config.epsilon()", "keras.config.image_data_format()")
_PLAIN = (bool, int, float, str, type(None), tuple)
_PARTS = (
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.losses.Loss,
    keras.metrics.Metric,
    keras.regularizers.Regularizer,
)
_PRIVATE = {"_trainable", "_dtype_policy", "_supports_masking"}  # attributes behind public properties
# What a layer needs only to be built, or a model only in `fit`.
_NOT_IN_CALLS = {
    "built",
    "compiled",
    "name",
    "predict_function",
    "steps_per_execution",
    "supports_jit",
    "test_function",
    "train_function",
}


def _counts(name: str) -> bool:
    """Whether Keras's calls may compute something else if an attribute of this name changes. A user's `call` names its own."""
    return name in _PRIVATE or not (name.startswith("_") or name.endswith("_initializer") or name in _NOT_IN_CALLS)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (*_PLAIN, keras.DTypePolicy)) or callable(value)


def reached(value: Any) -> tuple[list[str], list[Any]] | None:
    """Return the attributes that a Keras object's computation depends on, and the objects inside it; None for other objects."""
    if isinstance(value, keras.Layer):
        kind = type(value)
        methods = {name for name in vars(value) if callable(inspect.getattr_static(kind, name, None))}  # Keras wraps some
        names = [name for name, x in vars(value).items() if _counts(name) and name not in methods and _is_plain(x)]
        return names, [*value._layers, *(x for x in vars(value).values() if isinstance(x, _PARTS))]
    if isinstance(value, _PARTS):
        names = [name for name, x in vars(value).items() if isinstance(x, _PLAIN) or name == "_learning_rate"]
        inner = [x for x in vars(value).values() if isinstance(x, (*_PARTS, keras.Layer))]
        return names, inner
    return None


def settings() -> tuple[tuple[str, ...], Callable[[], tuple[Any, ...]]]:
    """Return the names of Keras's settings that a step may read, and a function that reads them."""
    return _SETTINGS, _read


def _read() -> tuple[Any, ...]:
    config = keras.config
    return config.dtype_policy(), config.floatx(), config.epsilon(), config.image_data_format()
