"""How checkpoints save and restore Keras's objects."""

import json
import warnings
from typing import Any

import keras

from ..checkpoint._objects import Inventory, ObjectKind, numbered, register_kind
from ..errors import CheckpointError
from ._internals import BaseOptimizer, SeedGenerator
from ._provider import _build_now


class _Layers(ObjectKind):
    """Models and layers: their weights, and the state of their seed generators."""

    types = (keras.Layer,)

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        weights = item.weights
        known = {id(weight) for weight in weights}
        seeds = [variable for variable in item.variables if id(variable) not in known]
        return numbered("weights/", weights) + numbered("seeds/", seeds)

    def describe(self, item: Any, inventory: Inventory) -> dict[str, Any]:
        return {"num_weights": len(item.weights), "build_config": _json_or_none(item.get_build_config())}

    def build(self, item: Any, key: str, description: dict[str, Any], inventory: Inventory) -> None:
        expected = description.get("num_weights", 0)
        if item.built or len(item.weights) >= expected:
            return
        reason = _try_to_build(item, description["build_config"])
        if not item.weights:
            raise CheckpointError(
                f"{key!r} ({type(item).__name__} {item.name!r}) has no weights yet, the checkpoint has {expected}, and it cannot "
                f"be built from what was saved ({reason}). Build it before restoring: model.build(input_shape), or call it on "
                "one batch."
            )


def _try_to_build(layer: Any, config: dict[str, Any] | None) -> str:
    """Build the layer as the saved one was. Returns what stood against it, if anything did."""
    if not config:
        return "Keras has no build config for it"
    try:
        with warnings.catch_warnings(record=True) as caught:  # Keras warns where it cannot build; we raise, and say it better
            warnings.simplefilter("always")
            layer.build_from_config(_with_tuples(config))
    except Exception as error:  # noqa: BLE001 - whatever the user's own build raises: it is told, and the weights are missing
        return f"{type(error).__name__}: {error}"
    return "; ".join(str(warning.message) for warning in caught) or "its build method makes no weights"


def _with_tuples(config: Any) -> Any:
    """`config` with the tuples that JSON made lists of: Keras knows shapes by them."""
    if isinstance(config, dict):
        return {key: _with_tuples(value) for key, value in config.items()}
    return tuple(map(_with_tuples, config)) if isinstance(config, list) else config


def _json_or_none(config: Any) -> Any:
    try:
        return json.loads(json.dumps(config))
    except (TypeError, ValueError):
        return None


class _Optimizers(ObjectKind):
    """Optimizers: their slots, named by what they are and the position of the variable they belong to."""

    types = (BaseOptimizer,)
    needs_others = True

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        # A slot is called after its variable: sequential_1_dense_2_kernel_momentum. Only the last part is the same next time.
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

    def build(self, item: Any, key: str, description: dict[str, Any], inventory: Inventory) -> None:
        stored = description.get("trainable_variables")
        if stored is None:
            return
        if item.built:
            _check_order(key, stored, [inventory.key_of(v) for v in item._trainable_variables])
            return
        variables = [None if other is None else inventory.variable_at(other) for other in stored]
        if any(variable is None for variable in variables):
            absent = sorted({other for other, v in zip(stored, variables, strict=True) if v is None and other is not None})
            raise CheckpointError(
                f"{key!r} ({type(item).__name__}) is not built, and the variables that it trains are not all in the checkpoint "
                f"or among the objects{f' (not found: {absent})' if absent else ''}. Add the model to the Checkpoint, when saving "
                "and when restoring, or build the optimizer first: optimizer.build(model.trainable_variables)."
            )
        _build_now(item, variables)


def _check_order(key: str, stored: list[str | None], found: list[str | None]) -> None:
    """Slots belong to variables by position: built on other variables, or in another order, they would be confused."""
    if None in stored or None in found or stored == found:
        return
    raise CheckpointError(
        f"{key!r} was saved for the variables {stored}, in this order, but is built for {found}. Build it in the saved order, or "
        "leave it unbuilt: restore builds it."
    )


class _Metrics(ObjectKind):
    """Metrics: what they have added up."""

    types = (keras.metrics.Metric,)

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        return numbered("", item.variables)


class _SeedGenerators(ObjectKind):
    """Seed generators: their state."""

    types = (SeedGenerator,)

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        return [("state", item.state)]


for _kind in (_Layers(), _Optimizers(), _Metrics(), _SeedGenerators()):
    register_kind(_kind)
