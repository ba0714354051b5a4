"""Weights in ``.weights.h5`` and ``.keras`` files, whose arrays are named by where their layers are in the model.

Keras itself walks the model, and gives each layer its group of arrays. Meanwhile, assignments are only noted.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from ...checkpoint.weights._hdf5 import Hdf5File
from ...checkpoint.weights._stored import listed
from ...errors import CheckpointError
from .._internals import saving_lib
from ..tensorflow._layers import refresh
from ._sources import Model, Source, Sources

_GROUP = "vars"
_FIRST_NAME = "_layer_checkpoint_dependencies"  # of "layers", in files of Keras 2.13


def by_structure(model: Model, file: Hdf5File) -> Sources:
    """Give each layer the arrays in its place.

    Raises:
        DamagedCheckpointError: If an array cannot be read.
    """
    store = _Store(file)
    failed = _Failures(store)
    with _Noting(store) as scope:
        saving_lib._load_state(
            model.keras,
            weights_store=store,
            assets_store=None,
            inner_path="",
            visited_saveables={id(getattr(model.keras, "optimizer", None))},
            failed_saveables=set(),
            error_msgs=failed,
        )
    refresh(model.keras)  # normalizations have computed what they need, from values that they do not have yet
    if store.damage is not None:
        raise store.damage
    found: dict[str, Source] = {}
    for variable, value, name in scope.noted.values():
        weight = model.name_of(variable)
        if weight is not None:
            found[weight] = Source(name, value=np.asarray(value))
    for layer, _ in failed.values():  # an array has another shape: which, the shapes tell
        for names in failed.groups[id(layer)] if isinstance(layer, keras.Layer) else ():
            if len(names) == len(_own_variables(layer)):
                found |= _in_order(model, file, layer, names)
    return Sources(found, _reason(model, found, failed.values()))


def by_layer_names(model: Model, file: Hdf5File) -> Sources:
    """Give the arrays of each layer of the file to the layer that has its name, in any depth.

    Raises:
        CheckpointError: If the file does not name its layers, or if several layers have the same name.
    """
    groups: dict[str, list[str]] = {}
    for name, entry in file.entries.items():
        if entry.label:
            groups.setdefault(entry.label.rpartition("/")[0], []).append(name)
    if not groups:
        raise CheckpointError(
            f"{file.path} does not say how its layers are called, as Keras 3 does: its arrays are named by their places in the "
            "model. Load it without by_name into a model of the same code, or pass rename=."
        )
    layers: dict[str, list[Any]] = {}
    for layer in model.keras._flatten_layers(include_self=False):
        layers.setdefault(layer.name, []).append(layer)
    found: dict[str, Source] = {}
    for layer_name in groups.keys() & layers.keys():
        places = {name.rpartition("/")[0] for name in groups[layer_name]}
        if len(places) > 1 or len(layers[layer_name]) > 1:
            raise CheckpointError(
                f"{file.path}: several layers have the name {layer_name!r}. Give them other names, or pass rename=."
            )
        (place,), (layer,) = places, layers[layer_name]
        names = [f"{place}/{i}" for i in range(len(groups[layer_name]))]
        if len(names) != len(_own_variables(layer)):
            raise CheckpointError(
                f"{file.path} does not fit the model {model.keras.name!r}: the layer {layer_name!r} has {len(names)} weights in "
                f"the file, and {len(_own_variables(layer))} in the model."
            )
        found |= _in_order(model, file, layer, names)
    return Sources(found, f" The layers of the file are {listed(sorted(groups))}, and those of the model {listed(sorted(layers))}.")


def _in_order(model: Model, file: Hdf5File, layer: Any, names: list[str]) -> dict[str, Source]:
    """The arrays of a layer whose variables are saved in their order, as all are that do not say otherwise."""
    for name in names:
        file.entry(name)
    own = zip(map(model.name_of, _own_variables(layer)), names, strict=True)
    return {weight: Source(name) for weight, name in own if weight is not None}


def _own_variables(layer: Any) -> list[Any]:
    return layer._trainable_variables + layer._non_trainable_variables


class _Store(saving_lib.H5IOStore):
    """What Keras asks for the arrays of a layer, by the path of the layer in the model.

    Attributes:
        last: The name of the array that was read last.
        damage: The first error of an array that is there.
    """

    def __init__(self, file: Hdf5File) -> None:
        self.file, self.mode, self.last = file, "r", ""
        self.damage: CheckpointError | None = None
        self._prefix = ""
        self._groups = {name.rpartition("/")[0] for name in file.entries}

    def get(self, path: str) -> "_Store":
        found = [each for each in (path, path.replace("layers", _FIRST_NAME)) if f"{each}/{_GROUP}".lstrip("/") in self._groups]
        self._prefix = f"{(found or [path])[0]}/{_GROUP}/".lstrip("/")
        return self

    def has_path(self, path: str) -> bool:
        return any(each.startswith(f"{path}/") for each in self._groups)

    def names(self) -> list[str]:
        """The arrays of the present layer in their order."""
        return [f"{self._prefix}{i}" for i in range(len(self))]

    def keys(self) -> list[str]:
        start = len(self._prefix)
        return [name[start:] for name in self.file.entries if name.startswith(self._prefix) and "/" not in name[start:]]

    def close(self) -> None:
        """Nothing: the file belongs to who has opened it."""

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self.keys())

    def __contains__(self, key: str) -> bool:
        return f"{self._prefix}{key}" in self.file.entries

    def __getitem__(self, key: str) -> np.ndarray:
        self.last = f"{self._prefix}{key}"
        if self.last not in self.file.entries:
            raise KeyError(self.last)
        try:
            return self.file.read(self.last)
        except CheckpointError as error:
            self.damage = self.damage or error
            raise


class _Failures(dict[int, tuple[Any, Exception]]):
    """The layers that did not get their weights, each with the reason.

    Attributes:
        groups: The arrays of the places that were tried for each layer.
    """

    def __init__(self, store: _Store) -> None:
        super().__init__()
        self._store = store
        self.groups: dict[int, list[list[str]]] = {}

    def __setitem__(self, key: int, value: tuple[Any, Exception]) -> None:
        self.groups.setdefault(key, []).append(self._store.names())
        super().__setitem__(key, value)


class _Noting(keras.StatelessScope):
    """Notes what would be assigned, and from which array."""

    def __init__(self, store: _Store) -> None:
        super().__init__()
        self._store = store
        self.noted: dict[int, tuple[Any, Any, str]] = {}

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        self.noted[id(variable)] = variable, value, self._store.last
        super().add_update(update)


def _reason(model: Model, found: Mapping[str, Source], failed: Iterable[tuple[Any, Exception]]) -> str:
    """What Keras says about the first layer that lacks something."""
    for layer, error in failed:
        names = [model.name_of(weight) for weight in getattr(layer, "weights", [])]
        if any(name is not None and name not in found for name in names):
            return f" Keras says: {' '.join(str(error).split())[:300]}"
    return ""
