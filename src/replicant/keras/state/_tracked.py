"""Makes a ``replicant.Variable`` a weight of the Keras layer, model, metric or optimizer that has it as an attribute.

An optimizer may also be given such variables, as in ``apply_gradients``. Keras tracks only Keras variables. So it gets a stand-in
that shares storage and Ref with the variable. You may read, assign, train, save and restore either of them. In Keras's own
functional code (``fit``, ``stateless_call``), both have the value in its scope.
"""

from typing import Any

import keras

from ...errors import VariableError
from ...random._generator import Generator
from ...replicas._own_device import on_device_of
from ...variables._recorder import read
from ...variables._variable import OwnRef, Variable
from .. import _internals
from ._refs import MADE_UNDER


class TrackedVariable(keras.Variable):
    """A ``replicant.Variable`` as Keras sees it."""

    def __init__(self, variable: Variable):
        ref = variable._ref
        self.__dict__["_replicant_ref"] = ref
        with _internals.outside_stateless_scope():
            super().__init__(
                keras.initializers.Zeros(),  # never called
                shape=ref.shape,
                dtype=str(ref.dtype),
                trainable=ref.trainable,
                autocast=False,
                aggregation=ref.aggregation.value,
                synchronization="on_read" if ref.on_read else "auto",
                name=ref.name.replace("/", "_"),
            )
        ref.stand_in = self

    def _initialize_with_initializer(self, initializer: Any) -> None:
        """Do nothing: the variable has a value already."""

    @property
    def _value(self) -> Any:
        return self.__dict__["_replicant_ref"]._value

    @_value.setter
    def _value(self, value: Any) -> None:
        self.__dict__["_replicant_ref"].set_raw(value, stacked=False)

    @property
    def _trainable(self) -> bool:
        return self.__dict__["_replicant_ref"].trainable

    @_trainable.setter
    def _trainable(self, value: bool) -> None:
        self.__dict__["_replicant_ref"].trainable = value

    @property
    def value(self) -> Any:
        """The value in Keras's functional scope, or else that of the variable."""
        known = self.scoped_value()
        return read(self.__dict__["_replicant_ref"]) if known is None else known

    def in_functional_code(self) -> bool:
        """Return whether Keras's own functional scope holds the values of variables. A replica's trace has Replicant's scope."""
        return _internals.in_stateless_scope() and not getattr(_internals.get_stateless_scope(), "asks_the_recorder", False)

    def scoped_value(self) -> Any:
        """Return the value in Keras's functional scope; None if it has none."""
        scope = _internals.get_stateless_scope() if self.in_functional_code() else None
        return None if scope is None else scope.get_current_value(self)


def keras_variable(variable: Variable, use: str) -> Any:
    """Return the stand-in of `variable`, which is always the same one. `use` names in the message what Keras was asked to do."""
    if not isinstance(variable._ref, OwnRef):
        raise VariableError(
            f"Variable {variable.name!r} was {use}, but it lies on parameter servers, where Keras cannot use it as a weight. "
            "Create it with self.add_weight(...) or keras.Variable(...), which also lie on the servers."
        )
    known = variable._ref.stand_in
    return TrackedVariable(variable) if known is None else known


def track(original: Any, tracker: Any, attr: Any) -> Any:
    """Track an attribute. For a ``replicant.Variable``, or the state of a generator, track its stand-in."""
    if isinstance(attr, Generator):
        track(original, tracker, attr.state)
        return attr
    if not isinstance(attr, Variable) or not _internals.is_tracking_enabled():
        return original(tracker, attr)
    original(tracker, keras_variable(attr, "set as an attribute of a Keras object"))
    return attr


def untrack(original: Any, tracker: Any, value: Any) -> None:
    """Stop tracking an attribute, or its stand-in."""
    tracked = _tracked(value)
    original(tracker, value if tracked is None else tracked)


def delete(original: Any, layer: Any, name: str) -> None:
    """Delete an attribute. For a ``replicant.Variable``, Keras forgets its stand-in too."""
    tracked = _tracked(getattr(layer, name, None))
    if tracked is not None:
        layer._untrack_variable(tracked)
    original(layer, name)


def apply(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Apply an optimizer to variables of Keras and of Replicant."""
    return original(optimizer, grads, None if trainable_variables is None else for_optimizer(trainable_variables))


def build(original: Any, optimizer: Any, variables: Any) -> None:
    """Build an optimizer for variables of Keras and of Replicant."""
    original(optimizer, for_optimizer(variables))


def add_slot(original: Any, optimizer: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
    """Add a variable of an optimizer on the device of the one that it belongs to, even outside the scope of the strategy."""
    (reference_variable,) = for_optimizer([reference_variable])  # an optimizer's own `build` passes on what it was given
    with on_device_of(reference_variable.__dict__.get(MADE_UNDER), reference_variable._value):
        return original(optimizer, reference_variable, *args, **kwargs)


def for_optimizer(variables: Any) -> list[Any]:
    """Return variables as an optimizer takes them: those of Replicant are their stand-ins."""
    return [keras_variable(v, "given to a Keras optimizer") if isinstance(v, Variable) else v for v in variables]


def stop_gradient(original: Any, variable: Any) -> Any:
    """Return a value through which no gradient flows, also that of a ``replicant.Variable``."""
    return original(variable.value() if isinstance(variable, Variable) else variable)


def _tracked(value: Any) -> Any:
    value = value.state if isinstance(value, Generator) else value
    return value._ref.stand_in if isinstance(value, Variable) else None
