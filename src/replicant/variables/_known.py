"""Which values are variables: ours, and those of the types that a library has registered."""

from collections.abc import Callable
from typing import Any

from ..replicas._values import PerReplica
from . import _recorder
from ._ref import Ref
from ._variable import Variable

# How to find the Ref of other libraries' variables: type -> function. Filled by their providers.
_foreign: dict[type, Callable[[Any], Ref]] = {}


def register_variable_type(kind: type, find: Callable[[Any], Ref]) -> None:
    """Make variables of another library known to tapes."""
    _foreign[kind] = find


def is_variable(value: Any) -> bool:
    """Whether `value` is a variable of ours or of a connected library."""
    return isinstance(value, (Variable, *_foreign))


def ref_of(variable: Any) -> Ref:
    """The Ref of a variable."""
    if isinstance(variable, Variable):
        return variable._ref  # noqa: SLF001 - no name for users
    return next(find(variable) for kind, find in _foreign.items() if isinstance(variable, kind))


def value_of(value: Any) -> Any:
    """What a variable holds: PerReplica if each replica has its own copy. Anything else as it is."""
    if not is_variable(value):
        return value
    raw, stacked = _recorder.read_copies(ref_of(value))
    return PerReplica.from_stacked(raw) if stacked else raw
