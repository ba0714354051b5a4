"""Under a mixed policy, a model that a program of Replicant calls computes in the dtypes in which its ``fit`` does.

``fit``, ``evaluate`` and ``predict`` call a model's ``call`` by itself, so each layer casts its variables by its own policy.
``model(x)`` casts those of everything in the model by that of the model. But a layer with ``autocast=False`` takes no casts of what
it is in: the last product of a ReversibleEmbedding would be in float32 then, with an array of that size.
"""

import threading
from typing import Any

import keras

from ...variables._recorder import current_recorder
from .._internals import get_autocast_scope, without_autocast


class _Outermost(threading.local):
    model: Any = None


_outermost = _Outermost()  # the model that a program of this thread calls, and not a layer around it


def call_layer(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer. Know the outermost model in a program."""
    if current_recorder() is None or _outermost.model is not None or not isinstance(layer, keras.Model):
        return original(layer, *args, **kwargs)
    if get_autocast_scope() is not None:
        return original(layer, *args, **kwargs)
    _outermost.model = layer
    try:
        return original(layer, *args, **kwargs)
    finally:
        _outermost.model = None


def call_operation(original: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an operation or a layer; the outermost model without its own casts."""
    if operation is not _outermost.model:
        return original(operation, *args, **kwargs)
    with without_autocast():
        return original(operation, *args, **kwargs)
