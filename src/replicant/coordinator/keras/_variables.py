"""Keras variables under a ParameterServerStrategy: they live on the servers."""

import functools
import threading
from contextlib import nullcontext
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from ...keras import _internals
from ...replicas._context import active_strategy, entered
from ...runtime._jax_dtypes import in_jax_dtype
from ...variables import _recorder
from ...variables._recorder import current_recorder
from .._libraries import connect_libraries
from .._lookup import embedding_lookup
from .._server_strategy import ServerStrategy
from ..servers._refs import ServerRef, change, check_readable
from ..servers._site import Site, current_site
from ..servers._store import VariableSpec
from ..workers import _pickling

_SPEC = "_replicant_spec"
_REF = "_replicant_ref"
_SLOT_OF = "_replicant_slot_of"


class _Mixin:
    """How a Keras variable on servers differs from other Keras variables."""

    @property
    def _value(self) -> Any:
        return server_ref(self).read_eagerly()

    @_value.setter
    def _value(self, value: Any) -> None:
        if value is not None:  # Keras empties variables while `fit` runs
            server_ref(self).set_raw(value, stacked=False)

    @property
    def value(self) -> Any:
        if current_recorder() is not None:
            check_readable(server_ref(self))
            return super().value  # type: ignore[misc]  # Keras's variable comes after this mixin
        scope = _internals.get_stateless_scope() if _internals.in_stateless_scope() else None
        known = None if scope is None else scope.get_current_value(self)
        value = _recorder.read(server_ref(self)) if known is None else known  # a tape outside of traces hears of it
        return self._maybe_autocast(value)  # type: ignore[attr-defined]  # Keras's

    def assign_add(self, value: Any) -> Any:
        if _is_functional():
            return self.assign(self.value + value)  # type: ignore[attr-defined]  # Keras's
        value = jnp.asarray(value)
        return change(server_ref(self), "add", value, lambda old: old + value)

    def assign_sub(self, value: Any) -> Any:
        if _is_functional():
            return self.assign(self.value - value)  # type: ignore[attr-defined]  # Keras's
        value = jnp.asarray(value)
        return change(server_ref(self), "add", -value, lambda old: old - value)


def _is_functional() -> bool:
    """Whether Keras keeps the variables' values in a stateless scope."""
    return current_recorder() is None and _internals.in_stateless_scope()


def server_ref(variable: Any) -> ServerRef:
    """A server variable as compiled programs see it."""
    return variable.__dict__[_REF]


@functools.cache
def _server_type(kind: type) -> type:
    return type(kind.__name__, (_Mixin, kind), {"__module__": kind.__module__, "__reduce__": _reduce})


class _Holder:
    """Turns an existing Keras variable into a server variable."""

    def __init__(self, variable: Any):
        self._variable = variable

    def attach(self, spec: VariableSpec, site: Site) -> None:
        variable = self._variable
        variable.__dict__.pop("_value", None)
        variable.__class__ = _server_type(type(variable))
        _put(variable, spec, site)


def _put(variable: Any, spec: VariableSpec, site: Site) -> None:
    variable.__dict__[_SPEC] = spec
    variable.__dict__[_REF] = ServerRef(spec, site, lambda: variable.trainable)
    site.variables[spec.number] = variable


def is_server_variable(variable: Any) -> bool:
    """Whether a Keras variable lives on servers."""
    return isinstance(variable, _Mixin)


def spec_of(variable: Any) -> VariableSpec:
    """Where a server variable is."""
    return variable.__dict__[_SPEC]


def slot_of(variable: Any) -> int | None:
    """The number of the variable to which this slot of an optimizer belongs; None if it is not a slot."""
    return variable.__dict__.get(_SLOT_OF)


def _reduce(variable: Any) -> Any:
    own = {_SPEC, _REF, "_value", "_initializer"}
    state = {name: value for name, value in variable.__dict__.items() if name not in own}
    return _restored, (spec_of(variable), type(variable).__bases__[1], state)


def _restored(spec: VariableSpec, kind: type, state: dict[str, Any]) -> Any:
    connect_libraries()  # a worker imports Keras when it unpickles the first variable
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


def created(original: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
    """Wrap the constructor: put a new variable on the servers."""
    original(variable, *args, **kwargs)
    if variable.__dict__.get("_value") is not None:
        _adopt(variable)


def initialized_late(original: Any, variable: Any) -> None:
    """Wrap the deferred initialization: put a variable on the servers that gets its value only now."""
    original(variable)
    _adopt(variable)


def _adopt(variable: Any) -> None:
    strategy = active_strategy()
    if isinstance(strategy, ServerStrategy) and not is_server_variable(variable):
        value = np.asarray(variable.__dict__["_value"])
        beside = _beside.spec
        spec = strategy.place_variable(_Holder(variable), variable.path, value, trainable=variable.trainable, beside=beside)
        if beside is not None and spec.shape == beside.shape:
            variable.__dict__[_SLOT_OF] = beside.number


def placed_beside(original: Any, optimizer: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``add_variable_from_reference``: put an optimizer's slot on the servers of the variable that it belongs to.

    This holds outside of the scope, too, where a checkpoint builds an optimizer that it restores.
    """
    if not is_server_variable(reference_variable):
        return original(optimizer, reference_variable, *args, **kwargs)
    strategy = server_ref(reference_variable).site.strategy
    away = isinstance(strategy, ServerStrategy) and active_strategy() is not strategy
    _beside.spec = spec_of(reference_variable)
    try:
        with entered(strategy, None) if away else nullcontext():
            return original(optimizer, reference_variable, *args, **kwargs)
    finally:
        _beside.spec = None


def embed(original: Any, layer: Any, inputs: Any) -> Any:
    """Wrap ``Embedding.call``: look up rows on the servers, instead of reading the whole table."""
    table = layer._embeddings  # noqa: SLF001 - `embeddings` adds the LoRA weights
    is_special = layer.lora_enabled or layer.quantization_mode is not None
    if not is_server_variable(table) or is_special or _is_functional():  # Keras needs, or already has, the table's value
        return original(layer, inputs)
    ids = jnp.asarray(in_jax_dtype(inputs, lambda: f"The input of layer {layer.name!r}"))
    rows = embedding_lookup(table, ids if jnp.issubdtype(ids.dtype, jnp.integer) else ids.astype(jnp.int32))
    return keras.ops.cast(rows, layer.compute_dtype)


_pickling.rules[_Mixin] = _reduce
