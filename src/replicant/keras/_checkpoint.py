"""How checkpoints save and restore Keras's objects."""

import contextlib
import json
import warnings
from collections.abc import Callable, Collection
from typing import Any

import jax
import keras
import numpy as np

from ..checkpoint.values._objects import Inventory, ObjectKind, numbered, register_kind
from ..errors import CheckpointError
from ..replicas._own_mesh import at_once
from . import _hook, _hooks
from ._internals import BaseOptimizer, SeedGenerator, outside_stateless_scope
from .optimizers._apply import build_now
from .tensorflow import _layers, _optimizers


class _Layers(ObjectKind):
    """Models and layers: their weights, and the state of their seed generators."""

    types = (keras.Layer,)
    is_layer = True
    never_saved = ("seeds/",)

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        weights = item.weights
        known = {id(weight) for weight in weights}
        seeds = [variable for variable in item.variables if id(variable) not in known]
        return numbered("weights/", weights) + numbered("seeds/", seeds)

    def describe(self, item: Any, inventory: Inventory) -> dict[str, Any]:
        return {"num_weights": len(item.weights), "build_config": _json_or_none(item.get_build_config())}

    def build(self, item: Any, key: str, description: dict[str, Any], inventory: Inventory) -> bool:
        expected = description.get("num_weights", 0)
        if type(expected) is not int:
            raise CheckpointError(f"The checkpoint says that {key!r} has {expected!r} weights, which is not a number.")
        if len(item.weights) >= expected:
            return True
        if not item.built:
            _try_to_build(item, description.get("build_config"))
        return len(item.weights) >= expected or (bool(item.weights) and not self.may_grow(item))

    def may_grow(self, item: Any) -> bool:
        return any(not layer.built for layer in item._flatten_layers())

    def part(self, item: Any, name: str) -> Any:
        return _layers.part_of(item, name)

    def left_out(self, item: Any, path: str, names: Collection[str]) -> list[str]:
        return _layers.left_out(item, path, names)

    def is_unbuilt(self, item: Any) -> bool:
        return not item.built

    def restored(self, item: Any) -> None:
        _layers.refresh(item)

    def when_built(self, item: Any, resume: Callable[[], None]) -> None:
        _hooks.fill(_hook.Slot.RESTORE, {(keras.Layer, "__call__"): _call})
        item.__dict__.setdefault(_WAITING, []).append(resume)  # not an attribute of the layer: Keras would try to track it


_WAITING = "_replicant_waiting_restores"


def _call(original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a layer. If a restore waits for it, build it on these arguments and restore its values first."""
    waiting = layer.__dict__.pop(_WAITING, None)
    if waiting is not None:
        try:
            symbolic_args, symbolic_kwargs = jax.tree.map(_symbolic, (args, kwargs))
            with outside_stateless_scope(), at_once():
                original(layer, *symbolic_args, **symbolic_kwargs)
            for resume in waiting:
                resume()
        except BaseException:
            layer.__dict__[_WAITING] = waiting  # replaces what a restore may have registered again meanwhile
            raise
    return original(layer, *args, **kwargs)


def _symbolic(value: Any) -> Any:
    is_array = isinstance(value, np.ndarray | jax.Array)
    return keras.KerasTensor(value.shape, keras.backend.standardize_dtype(value.dtype)) if is_array else value


def _try_to_build(layer: Any, config: dict[str, Any] | None) -> None:
    """Build the layer as the saved one was built, if possible."""
    if not config:
        return
    # Keras warns if it cannot build, and a user's own build may raise anything. The layer is then built at its first call.
    with warnings.catch_warnings(), contextlib.suppress(Exception):
        warnings.simplefilter("ignore")
        layer.build_from_config(_with_tuples(config))


def _with_tuples(config: Any) -> Any:
    """Turn the lists in `config` back into the tuples they were before JSON: Keras recognizes shapes by them."""
    if isinstance(config, dict):
        return {key: _with_tuples(value) for key, value in config.items()}
    return tuple(map(_with_tuples, config)) if isinstance(config, list) else config


def _json_or_none(config: Any) -> Any:
    try:
        return json.loads(json.dumps(config))
    except (TypeError, ValueError):
        return None


class _Optimizers(ObjectKind):
    """Optimizers: their slots, each named by its kind and the position of its variable."""

    types = (BaseOptimizer,)
    needs_others = True

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        # Keras names a slot after its variable: sequential_1_dense_2_kernel_momentum. Only the last part is the same next time.
        prefixes = {f"{variable.path}_".replace("/", "_") for variable in item._trainable_variables}
        counts: dict[str, int] = {}
        named = []
        for variable in item.variables:
            prefix = max((p for p in prefixes if variable.name.startswith(p)), key=len, default="")
            slot = variable.name.removeprefix(prefix)
            position = counts[slot] = counts.get(slot, -1) + 1
            named.append((f"{slot}/{position}" if prefix or position else slot, variable))
        return named

    def describe(self, item: Any, inventory: Inventory) -> dict[str, Any]:
        return {"trainable_variables": [inventory.key_of(v) for v in item._trainable_variables] if item.built else None}

    def build(self, item: Any, key: str, description: dict[str, Any], inventory: Inventory) -> bool:
        stored = description.get("trainable_variables")
        if stored is None:
            return True
        if not isinstance(stored, list) or not all(other is None or isinstance(other, str) for other in stored):
            raise CheckpointError(f"The checkpoint says that {key!r} was saved for {stored!r}, which is not a list of names.")
        if item.built:
            _check_order(key, stored, [inventory.key_of(v) for v in item._trainable_variables])
            return True
        if any(other is not None and inventory.will_have(other) for other in stored):
            return False
        variables = [None if other is None else inventory.variable_at(other) for other in stored]
        if any(variable is None for variable in variables):
            absent = sorted({other for other, v in zip(stored, variables, strict=True) if v is None and other is not None})
            raise CheckpointError(
                f"{key!r} ({type(item).__name__}) is not built, and not all of the variables that it trains are in the checkpoint "
                f"or among the objects{f' (not found: {absent})' if absent else ''}. Add the model to the Checkpoint both when you "
                "save and when you restore, or build the optimizer first: optimizer.build(model.trainable_variables)."
            )
        build_now(item, variables)
        return True

    def is_unbuilt(self, item: Any) -> bool:
        return not item.built

    def match(self, item: Any, node: int, found: Any) -> None:
        _optimizers.match(item, node, found)

    def build_as(self, item: Any, node: int, found: Any) -> bool:
        return _optimizers.build(item, node, found)


def _check_order(key: str, stored: list[str | None], found: list[str | None]) -> None:
    """Raise if the optimizer is built on other variables, or in another order: slots belong to variables by position."""
    if None in stored or None in found or stored == found:
        return
    raise CheckpointError(
        f"{key!r} was saved for the variables {stored}, in this order, but is built for {found}. Build it in the saved order, or "
        "leave it unbuilt and let restore build it."
    )


class _Metrics(ObjectKind):
    """Metrics: what they have accumulated."""

    types = (keras.metrics.Metric,)
    is_layer = True

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        return numbered("", item.variables)


class _SeedGenerators(ObjectKind):
    """Seed generators: their state."""

    types = (SeedGenerator,)

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        return [("state", item.state)]


for _kind in (_Layers(), _Optimizers(), _Metrics(), _SeedGenerators()):
    register_kind(_kind)
