"""Which values are variables: those of Replicant, and those of types that another library has registered."""

from collections.abc import Callable
from typing import Any

from ..replicas._values import PerReplica
from . import _recorder
from ._ref import Ref
from ._variable import OwnRef, Variable

# For each type of another library's variables, the function that finds a variable's Ref. The providers fill it.
_foreign: dict[type, Callable[[Any], Ref]] = {}


Gradients = Callable[[Any], tuple[list[Any], Callable[[list[Any]], Any]]]


class Objects:
    """The objects that JAX could take apart, but that steps use as they are, as those of Flax NNX.

    Attributes:
        kinds: Their types.
        stops: Their types, and those of containers of the same library that are plain values.
        gradients: Takes a module or container, and returns the variables in it that have gradients, and a function that puts
            their gradients in the form that the library's own optimizers take.
    """

    def __init__(self) -> None:
        self.kinds: tuple[type, ...] = ()
        self.stops: tuple[type, ...] = ()
        self.gradients: Gradients = lambda value: ([], lambda _: value)
        self._test: Callable[[Any], bool] = bool

    def register(
        self, kinds: tuple[type, ...], values: tuple[type, ...], test: Callable[[Any], bool], gradients: "Gradients"
    ) -> None:
        """Register the types of a library. `test` tells whether one was made outside of every trace. `values` are taken apart."""
        self.kinds, self.stops, self._test, self.gradients = kinds, kinds + values, test, gradients

    def is_used_itself(self, value: Any) -> bool:
        """Whether steps use the object itself."""
        return isinstance(value, self.kinds) and self._test(value)


objects = Objects()


def register_variable_type(kind: type, find: Callable[[Any], Ref]) -> None:
    """Register a type of variables of another library, and the function that finds the Ref of one."""
    _foreign[kind] = find


def is_variable(value: Any) -> bool:
    """Whether `value` is a variable of Replicant or of a connected library."""
    return isinstance(value, (Variable, *_foreign))


def ref_of(variable: Any) -> Ref:
    """Return the Ref of a variable."""
    if isinstance(variable, Variable):
        return variable._ref  # noqa: SLF001 - users need no name for it
    # The first of its types that is known: with KERAS_NNX_ENABLED=1, a variable of Keras is one of Flax as well.
    return next(_foreign[kind](variable) for kind in type(variable).__mro__ if kind in _foreign)


def variable_of(ref: Ref) -> Any:
    """Return a variable with this Ref: that of the library which made it, or a ``Variable`` that shares its storage."""
    if not isinstance(ref, OwnRef):
        return ref.holder
    variable = object.__new__(Variable)
    variable._ref = ref
    return variable


def value_of(value: Any) -> Any:
    """Return what a variable holds, as PerReplica if each replica has its own copy. Other values are returned as they are."""
    if not is_variable(value):
        return value
    raw, stacked = _recorder.read_copies(ref_of(value))
    return PerReplica.from_stacked(raw) if stacked else raw
