"""Which models ``fit`` can compile, and what it says of those that it can't.

Keras runs a model eagerly as soon as one of its layers says ``supports_jit = False``. Some layers say so for TensorFlow's sake
alone: JAX compiles them, and they draw the same numbers in a program as outside of one.
"""

import warnings
from typing import Any

import keras

from ..replicas._placement import Placement

# By exact class, because a subclass may do anything in Python. Not RandomCrop: it cuts at places that a trace does not know.
_COMPILABLE = (
    keras.layers.RandomPerspective,
    keras.layers.RandomRotation,
    keras.layers.RandomShear,
    keras.layers.RandomTranslation,
    keras.layers.RandomZoom,
)
_CHOOSES_IN_PYTHON = keras.layers.AugMix  # which layers it applies: compiled, it would choose once and for all
_MAX_NAMED = 3  # layers in a message


def allow_compilation(model: Any) -> None:
    """Let Keras compile a model whose layers JAX can compile."""
    layers = model._flatten_layers()
    if any(isinstance(layer, _CHOOSES_IN_PYTHON) for layer in layers):
        return
    for layer in layers:
        if type(layer) in _COMPILABLE:
            layer.supports_jit = True


def warn_if_unasked(model: Any, placement: Placement) -> None:
    """Say that a model runs eagerly where nobody asked for it and where devices could have shared the work."""
    layers = model._flatten_layers()
    blocking = [layer for layer in layers if isinstance(layer, _CHOOSES_IN_PYTHON)]
    blocking = blocking or [layer for layer in layers if not layer.supports_jit]
    if model.run_eagerly or placement.on_one_device or not blocking:
        return
    named = ", ".join(f"{layer.name!r} ({type(layer).__name__})" for layer in blocking[:_MAX_NAMED])
    more = f" and {len(blocking) - _MAX_NAMED} more" if len(blocking) > _MAX_NAMED else ""
    warnings.warn(
        f"The model {model.name!r} runs eagerly, because its layers {named}{more} cannot be compiled. So each of the "
        f"{placement.num_replicas} devices computes every batch whole, and they do not share the work. Apply those layers to the "
        "dataset instead: dataset.map(lambda x, y: (layer(x), y)).",
        stacklevel=2,
    )
