"""The parts of layers and models, by the names that they have in TensorFlow's checkpoints."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import keras

from ...replicas._own_mesh import at_once
from .._internals import Functional, outside_stateless_scope

_WITH_WEIGHTS = re.compile(r"layer_with_weights-([0-9]{1,9})")  # Keras 2: counts the layers of a model that have any
_RENAMED: dict[type, dict[str, str]] = {
    keras.layers.DepthwiseConv1D: {"depthwise_kernel": "kernel"},
    keras.layers.DepthwiseConv2D: {"depthwise_kernel": "kernel"},
    keras.layers.Normalization: {"mean": "adapt_mean", "variance": "adapt_variance"},
}


def part_of(layer: Any, name: str) -> Any:
    """Return what a checkpoint calls `name` in a layer; None if there is no such thing, or nothing tells which it is.

    Keras 3 has put an underscore before the names of some attributes, and has taken it away from others.
    """
    if (match := _WITH_WEIGHTS.fullmatch(name)) is not None:
        return _layer_with_weights(layer, int(match[1]))
    renamed = next((names[name] for kind, names in _RENAMED.items() if isinstance(layer, kind) and name in names), name)
    bare = renamed.lstrip("_")
    found = (vars(layer).get(each) for each in (renamed, f"_{bare}", bare))
    return next((part for part in found if part is not None), None)


def left_out(layer: Any, path: str, names: Collection[str]) -> list[str]:
    """Return a sentence about lists and dicts of layers that a checkpoint does not have; `names` are those of what it has."""
    lists = [f"{path}/{name}" for name, value in vars(layer).items() if name not in names and _has_layers(name, value)]
    if not lists:
        return []
    told = f"Keras 3 leaves layers in lists and dicts out of TensorFlow's checkpoints: {', '.join(lists)}."
    trained = "What an optimizer has trained of them is in its list of variables, from where restore(path, by_order=True) takes it."
    return [f"{told} {trained}"]


def refresh(layer: Any) -> None:
    """Let normalizations compute anew what they compute from their variables."""
    for each in layer._flatten_layers():
        if isinstance(each, keras.layers.Normalization) and each.built and each.input_mean is None:
            with outside_stateless_scope(), at_once():
                each.finalize_state()


def _layer_with_weights(model: Any, number: int) -> Any:
    if not isinstance(model, keras.Sequential | Functional) or any(not layer.built for layer in model._flatten_layers()):
        return None
    layers = [layer for layer in model.layers if layer.weights]
    return layers[number] if number < len(layers) else None


def _has_layers(name: str, value: Any) -> bool:
    is_own = not name.startswith("_") and isinstance(value, list | dict)
    return is_own and any(isinstance(leaf, keras.Layer) and leaf.weights for leaf in _leaves(value))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    else:
        yield value
