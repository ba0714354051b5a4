"""Decides which models ``fit`` can compile, and warns of those that it cannot.

Keras runs a model eagerly as soon as one of its layers has ``supports_jit = False``. Some layers have it only because of
TensorFlow: JAX compiles them, and they draw the same random numbers in a compiled program as outside.
"""

import warnings
from typing import Any

import keras

from ...replicas._placement import Placement

# Exact classes, because a subclass may do anything in Python. RandomCrop is missing: a trace does not know where it crops.
_COMPILABLE = (
    keras.layers.RandomPerspective,
    keras.layers.RandomRotation,
    keras.layers.RandomShear,
    keras.layers.RandomTranslation,
    keras.layers.RandomZoom,
)
_CHOOSES_IN_PYTHON = keras.layers.AugMix  # it chooses layers at random in Python; compiled, it would choose only once
_MAX_NAMED = 3  # layers that a message names


def allow_compilation(model: Any) -> None:
    """Let Keras compile a model whose layers JAX can compile."""
    layers = model._flatten_layers()
    if any(isinstance(layer, _CHOOSES_IN_PYTHON) for layer in layers):
        return
    for layer in layers:
        if type(layer) in _COMPILABLE:
            layer.supports_jit = True


def warn_if_unasked(model: Any, placement: Placement) -> None:
    """Warn if a model runs eagerly although the user did not ask for it and several devices could share the work."""
    layers = model._flatten_layers()
    blocking = [layer for layer in layers if isinstance(layer, _CHOOSES_IN_PYTHON)]
    blocking = blocking or [layer for layer in layers if not layer.supports_jit]
    if model.run_eagerly or placement.on_one_device or not blocking:
        return
    named = ", ".join(f"{layer.name!r} ({type(layer).__name__})" for layer in blocking[:_MAX_NAMED])
    more = f" and {len(blocking) - _MAX_NAMED} more" if len(blocking) > _MAX_NAMED else ""
    warnings.warn(
        f"The model {model.name!r} runs eagerly, because its layers {named}{more} cannot be compiled. Each of the "
        f"{placement.num_replicas} devices therefore computes every whole batch, and they do not share the work. Apply those "
        "layers to the dataset instead: dataset.map(lambda x, y: (layer(x), y)).",
        stacklevel=2,
    )
