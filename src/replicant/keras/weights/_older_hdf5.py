"""Weights in ``.h5`` files of Keras 2, and of ``model.save("model.h5")``: a group for each layer, with a list of its weights."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...checkpoint.weights._hdf5 import Hdf5File
from ...checkpoint.weights._stored import listed
from ...errors import CheckpointError
from ._sources import Model, Source, Sources

_TOP = "top_level_model_weights"  # the group of weights that belong to no layer


class _Stored(NamedTuple):
    """A layer of the file: its name, and the names of its arrays."""

    layer: str
    arrays: list[str]


def by_layers(model: Model, file: Hdf5File) -> Sources:
    """Give the arrays of each layer of the file to the layer in its place, as Keras does.

    Raises:
        CheckpointError: If the model has other numbers of layers or of weights, or the same weights in another order.
    """
    stored = [each for each in _layers(file) if each.arrays]
    layers = [layer for layer in model.keras.layers if _weights(layer)]
    if len(stored) != len(layers):
        raise CheckpointError(
            f"{file.path} has {len(stored)} layers with weights ({listed([each.layer for each in stored])}), and the model "
            f"{model.keras.name!r} has {len(layers)} ({listed([layer.name for layer in layers])}). Build the model that was saved; "
            "or pass by_name=True, which takes the layers that have the same name."
        )
    found: dict[str, Source] = {}
    for each, layer in zip(stored, layers, strict=True):
        found |= _pairs(model, file, each, layer.name, _weights(layer))
    return Sources(found | _top(model, file))


def by_layer_names(model: Model, file: Hdf5File, *, skip_mismatch: bool) -> Sources:
    """Give the arrays of each layer of the file to the layers of the model that have its name.

    Raises:
        CheckpointError: If a layer has another number of weights, unless `skip_mismatch`.
    """
    layers: dict[str, list[Any]] = {}
    for layer in model.keras.layers:
        layers.setdefault(layer.name, []).append(layer)
    found: dict[str, Source] = {}
    for each in _layers(file):
        for layer in layers.get(each.layer, []):
            if len(each.arrays) == len(_weights(layer)) or not skip_mismatch:
                found |= _pairs(model, file, each, layer.name, _weights(layer))
    names = [each.layer for each in _layers(file) if each.arrays]
    return Sources(
        found | (_top(model, file) if len(_top_of(file)) == len(_top_weights(model)) else {}),
        f" The layers of the file are {listed(names)}, and those of the model {listed(list(layers))}. Keras numbers the names of "
        "layers as they are made in a process: name them, or load the file without by_name.",
    )


def _pairs(model: Model, file: Hdf5File, stored: _Stored, layer: str, weights: Sequence[Any]) -> dict[str, Source]:
    if len(stored.arrays) != len(weights):
        raise CheckpointError(
            f"{file.path} does not fit the model {model.keras.name!r}: the layer {stored.layer!r} has {len(stored.arrays)} weights "
            f"in the file, and {layer!r} in its place has {len(weights)}."
        )
    ends = [name.rpartition("/")[2].removesuffix(":0") for name in stored.arrays]
    own = [weight.name for weight in weights]
    if ends != own and sorted(ends) == sorted(own):  # other names may be those of another version; their order is the only hint
        raise CheckpointError(
            f"{file.path}: the layer {stored.layer!r} has its weights in the order {listed(ends)}, and {layer!r} of the model in "
            f"the order {listed(own)}: a part of it was frozen (trainable=False) in only one of them. Freeze the same layers first."
        )
    named = zip(stored.arrays, map(model.name_of, weights), strict=True)
    return {name: Source(array) for array, name in named if name is not None}


def _top(model: Model, file: Hdf5File) -> dict[str, Source]:
    """The weights that belong to the model itself, and to none of its layers."""
    stored = _Stored(_TOP, _top_of(file))
    return _pairs(model, file, stored, model.keras.name, _top_weights(model)) if stored.arrays else {}


def _top_of(file: Hdf5File) -> list[str]:
    return _stored(file, file.older, _TOP).arrays if _TOP in file.older else []


def _top_weights(model: Model) -> list[Any]:
    own = model.keras._trainable_variables + model.keras._non_trainable_variables
    return [weight for weight in own if model.name_of(weight) is not None]


def _layers(file: Hdf5File) -> list[_Stored]:
    return [_stored(file, file.older, name) for name in file.names(file.older, "layer_names")]


def _stored(file: Hdf5File, older: Any, layer: str) -> _Stored:
    if layer not in older:
        raise CheckpointError(f"{file.path} is damaged: it names the layer {layer!r}, and has none.")
    group = older[layer]
    arrays = [f"{group.name}/{name}".lstrip("/") for name in file.names(group, "weight_names")]
    for name in arrays:
        file.entry(name)
    return _Stored(layer, arrays)


def _weights(layer: Any) -> list[Any]:
    return layer.trainable_weights + layer.non_trainable_weights
