"""Keras under a ParameterServerStrategy: its variables lie on the servers, its optimizers update them there.

On a worker ``optimizer.apply`` clips the gradients and pushes them; each server has a copy of the optimizer, without state of its
own, and applies it to its shards and to the optimizer's variables that go with them.
"""

import functools
import threading
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from ...errors import ArgumentError
from ...keras import _hooks, _internals
from ...replicas._context import active_strategy
from ...variables._recorder import current_recorder
from .._lookup import embedding_lookup
from ..processes._cluster import Cluster
from ..servers._gradients import Part, push_gradients
from ..servers._refs import ServerRef, change, check_readable
from ..servers._rows_gradient import RowsGradient
from ..servers._shares import reduced
from ..servers._site import Site, current_site, in_worker
from ..servers._store import VariableSpec
from ..workers import _pickling
from ._pickling import register

_SPEC = "_replicant_spec"


class _Mixin:
    """What a Keras variable does that lies on servers."""

    @property
    def _value(self) -> Any:
        return _ref(self).read_eagerly()

    @_value.setter
    def _value(self, value: Any) -> None:
        if value is not None:  # Keras empties variables while `fit` runs
            _ref(self).set_raw(value, stacked=False)

    @property
    def value(self) -> Any:
        if current_recorder() is not None:
            check_readable(_ref(self))
            return super().value  # type: ignore[misc]
        scope = _internals.get_stateless_scope() if _internals.in_stateless_scope() else None
        known = None if scope is None else scope.get_current_value(self)
        return self._maybe_autocast(_ref(self).read_eagerly() if known is None else known)  # type: ignore[attr-defined]

    def assign_add(self, value: Any) -> Any:
        if _is_functional():
            return self.assign(self.value + value)  # type: ignore[attr-defined]
        value = jnp.asarray(value)
        return change(_ref(self), "add", value, lambda old: old + value)

    def assign_sub(self, value: Any) -> Any:
        if _is_functional():
            return self.assign(self.value - value)  # type: ignore[attr-defined]
        value = jnp.asarray(value)
        return change(_ref(self), "add", -value, lambda old: old - value)


def _is_functional() -> bool:
    """Whether Keras keeps the variables' values for itself, in a scope of its own."""
    return current_recorder() is None and _internals.in_stateless_scope()


def _ref(variable: Any) -> ServerRef:
    return variable.__dict__["_replicant_ref"]


@functools.cache
def _server_type(kind: type) -> type:
    return type(kind.__name__, (_Mixin, kind), {"__module__": kind.__module__, "__reduce__": _reduce})


class _Holder:
    """Makes an existing Keras variable one of the servers'."""

    def __init__(self, variable: Any):
        self._variable = variable

    def attach(self, spec: VariableSpec, site: Site) -> None:
        variable = self._variable
        variable.__dict__.pop("_value", None)
        variable.__class__ = _server_type(type(variable))
        _put(variable, spec, site)


def _put(variable: Any, spec: VariableSpec, site: Site) -> None:
    variable.__dict__[_SPEC] = spec
    variable.__dict__["_replicant_ref"] = ServerRef(spec, site, lambda: variable.trainable)
    site.variables[spec.number] = variable


def is_server_variable(variable: Any) -> bool:
    """Whether a Keras variable lies on servers."""
    return isinstance(variable, _Mixin)


def _reduce(variable: Any) -> Any:
    own = {_SPEC, "_replicant_ref", "_value", "_initializer"}
    state = {name: value for name, value in variable.__dict__.items() if name not in own}
    return _restored, (variable.__dict__[_SPEC], type(variable).__bases__[1], state)


def _restored(spec: VariableSpec, kind: type, state: dict[str, Any]) -> Any:
    site = current_site()

    def make() -> Any:
        variable = object.__new__(_server_type(kind))
        variable.__dict__.update(state, _initializer=None)
        _put(variable, spec, site)
        return variable

    return site.variable(spec, make)


# Creation


class _Beside(threading.local):
    spec: VariableSpec | None = None


_beside = _Beside()


def _created(original: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    original(variable, *args, **kwargs)
    if variable.__dict__.get("_value") is not None:
        _adopt(variable)


def _initialized_late(original: Any, variable: Any) -> None:
    original(variable)
    _adopt(variable)


def _adopt(variable: Any) -> None:
    strategy: Any = active_strategy()
    if hasattr(strategy, "place_variable") and not is_server_variable(variable):
        value = np.asarray(variable.__dict__["_value"])
        beside = _beside.spec
        spec = strategy.place_variable(_Holder(variable), variable.path, value, trainable=variable.trainable, beside=beside)
        if beside is not None and spec.shape == beside.shape:
            variable.__dict__["_replicant_slot_of"] = beside.number


def _add_from_reference(original: Any, optimizer: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_server_variable(reference_variable):
        return original(optimizer, reference_variable, *args, **kwargs)
    _beside.spec = reference_variable.__dict__[_SPEC]
    try:
        return original(optimizer, reference_variable, *args, **kwargs)
    finally:
        _beside.spec = None


# Optimizers

_UNSUPPORTED = ("use_ema", "gradient_accumulation_steps", "loss_scale_factor")


def check_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """Raise ArgumentError for what servers cannot do."""
    kind = type(optimizer).__name__
    if isinstance(optimizer, _internals.LossScaleOptimizer):
        raise ArgumentError(
            "LossScaleOptimizer does not work with parameter servers: use the optimizer itself, without loss scaling."
        )
    for name in _UNSUPPORTED:
        if getattr(optimizer, name, None):
            raise ArgumentError(
                f"{kind}({name}={getattr(optimizer, name)!r}) does not work with parameter servers, whose updates are each one "
                f"step. Make the optimizer without {name}."
            )
    for variable in variables:
        if not is_server_variable(variable):
            raise ArgumentError(
                f"{kind}: the variable {variable.path!r} lies in this process, not on the servers. Make it in strategy.scope()."
            )
        if variable.constraint is not None and len(variable.__dict__[_SPEC].shards) > 1:
            raise ArgumentError(
                f"The variable {variable.path!r} has a constraint and {len(variable.__dict__[_SPEC].shards)} shards, and a "
                "constraint needs the whole value. Leave the constraint out, or the variable in one shard."
            )


def _apply(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
    if not is_server_variable(optimizer.__dict__.get("_iterations", getattr(optimizer, "iterations", None))):
        return original(optimizer, grads, trainable_variables)
    variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
    apply_parts(optimizer, [Part(list(grads))], list(variables))
    return None


def apply_parts(optimizer: Any, parts: list[Part], variables: list[Any]) -> None:
    """Have the servers apply an optimizer to the sum of the parts' gradients."""
    used = [any(g is not None for g in found) for found in zip(*[part.grads for part in parts], strict=True)]
    if len(used) != len(variables) or not any(used):
        raise ArgumentError(f"{type(optimizer).__name__}.apply: there is no gradient for any of the {len(variables)} variables.")
    chosen = [v for v, is_used in zip(variables, used, strict=True) if is_used]
    check_optimizer(optimizer, chosen)
    iterations = _ref(optimizer._iterations)
    number = iterations.spec.number
    if not in_worker() and not optimizer.built:
        _build(optimizer, list(variables))
    iterations.site.prepare_rule(number, [v.__dict__[_SPEC].number for v in variables])
    _check_clipping(optimizer, iterations.site)
    kept = [part._replace(grads=[g for g, is_used in zip(part.grads, used, strict=True) if is_used]) for part in parts]
    if len(kept) == 1:
        kept = [kept[0]._replace(grads=_clipped(optimizer, list(kept[0].grads)))]
    rate = optimizer._get_current_learning_rate()
    push_gradients(iterations, optimizer._iterations.value, rate, kept, [_ref(v) for v in chosen])


_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def _check_clipping(optimizer: Any, site: Site) -> None:
    name = next((name for name in _CLIPPING if getattr(optimizer, name) is not None), None)
    if site.client.holds and name is not None:
        raise ArgumentError(
            f"{type(optimizer).__name__}({name}={getattr(optimizer, name)!r}) clips the gradient of each function by itself, and "
            "with ClusterCoordinator(synchronous=True) several are summed first. Make the optimizer without it."
        )


def _apply_scaled(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    if any(is_server_variable(variable) for variable in optimizer.variables):
        check_optimizer(optimizer, [])
    return original(optimizer, grads, trainable_variables)


def _clipped(optimizer: Any, grads: list[Any]) -> list[Any]:
    """The gradients as the optimizer's clipping leaves them. Rows that have none would add nothing to a norm."""
    if all(getattr(optimizer, name) is None for name in _CLIPPING):
        return grads
    grads = [g.summed() if isinstance(g, RowsGradient) else g for g in grads]
    clipped = optimizer._clip_gradients([g.values if isinstance(g, RowsGradient) else g for g in grads])
    return [g.replace(c) if isinstance(g, RowsGradient) else c for g, c in zip(grads, clipped, strict=True)]


def _build(optimizer: Any, variables: list[Any]) -> None:
    with _internals.outside_stateless_scope(), jax.ensure_compile_time_eval(), keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
        optimizer.built = True


_preparing = threading.Lock()
_known_optimizers: dict[int, Any] = {}


def prepare_rule(cluster: Cluster, site: Site, number: int, variables: list[int]) -> None:
    """On the coordinator: make the optimizer's own variables, and send the optimizer to all servers."""
    from ._rule import rule_blob

    with _preparing:
        optimizer = site.resources.get(("optimizer", number))  # type: ignore[call-overload]
        if optimizer is None:
            raise ArgumentError("The optimizer was not made in strategy.scope() of this program.")
        if not optimizer.built:
            _build(optimizer, [site.variables[v] for v in variables])
        if number not in cluster.rules:
            cluster.add_rule(number, rule_blob(optimizer))


def _embed(original: Any, layer: Any, inputs: Any) -> Any:
    """Look rows up where they lie, instead of reading the whole table."""
    table = layer._embeddings
    is_special = layer.lora_enabled or layer.quantization_mode is not None
    if not is_server_variable(table) or is_special or _is_functional():  # Keras has the table's value then
        return original(layer, inputs)
    ids = jnp.asarray(inputs)
    rows = embedding_lookup(table, ids if jnp.issubdtype(ids.dtype, jnp.integer) else ids.astype(jnp.int32))
    return keras.ops.cast(rows, layer.compute_dtype)


def _made_optimizer(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    original(optimizer, *args, **kwargs)
    iterations = optimizer.__dict__.get("_iterations")
    if iterations is not None and is_server_variable(iterations):
        site = _ref(iterations).site
        site.resources[("optimizer", iterations.__dict__[_SPEC].number)] = optimizer  # type: ignore[index]


@functools.cache
def connect() -> None:
    """Teach Keras about parameter servers."""
    from . import _evaluate, _fit

    optimizer = _internals.BaseOptimizer
    wrappers: dict[tuple[Any, str], Any] = {
        (_internals.KerasVariable, "__init__"): _created,
        (_internals.KerasVariable, "_deferred_initialize"): _initialized_late,
        (keras.layers.Embedding, "call"): _embed,
        (optimizer, "__init__"): _made_optimizer,
        (optimizer, "add_variable_from_reference"): _add_from_reference,
        (optimizer, "apply"): _apply,
        (_internals.LossScaleOptimizer, "apply"): _apply_scaled,  # it has one of its own
        (_internals.loss_module, "reduce_weighted_values"): reduced,
        (_internals.JAXTrainer, "fit"): _fit.fit,
        (_internals.JAXTrainer, "evaluate"): _evaluate.evaluate,
    }
    _hooks.fill(_hooks.Slot.SERVERS, wrappers)
    register()


_pickling.rules[_Mixin] = _reduce


connect()  # a worker meets Keras when it unpickles the first variable
