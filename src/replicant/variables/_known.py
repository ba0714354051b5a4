"""Which values are variables: those of Replicant, and those of types that another library has registered."""

from collections.abc import Callable
from typing import Any

from ..replicas._values import PerReplica
from . import _recorder
from ._ref import Ref
from ._variable import OwnRef, Variable

# For each type of another library's variables, the function that finds a variable's Ref. The providers fill it.
_foreign: dict[type, Callable[[Any], Ref]] = {}


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
    return next(find(variable) for kind, find in _foreign.items() if isinstance(variable, kind))


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
