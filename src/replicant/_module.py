"""``Module``: an object whose attributes are found wherever they are: in lists, dicts, other modules and Keras layers."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from .checkpoint.values._objects import kind_of, register_parts
from .errors import ArgumentError
from .variables._known import is_variable, ref_of
from .variables._libraries import connect_libraries

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Module:
    """A class to derive from, whose variables and modules are those in its attributes.

    Attributes are searched in alphabetical order, through lists, tuples and dicts, through other modules, and through layers and
    metrics of Keras. Set attributes whenever you like: they are looked for when they are asked for. A ``Checkpoint`` takes a module
    as it takes a model, and saves it by the names of the attributes.

    Semantics: tf.Module, but names of modules are not part of the names of variables.

    Args:
        name: A Python name. The default is that of the class, in lower case.

    Raises:
        ArgumentError: If the name is not a Python name.

    >>> import replicant, jax.numpy as jnp
    >>> class Dense(replicant.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w, self.b = replicant.Variable(jnp.ones((2, 3)), name="w"), replicant.Variable(jnp.zeros(3), name="b")
    >>> [v.name for v in Dense().trainable_variables], Dense().name
    (['b', 'w'], 'dense')
    """

    def __init__(self, name: str | None = None):
        self._name = _snake_case(type(self).__name__) if name is None else name
        if not self._name.isidentifier():
            raise ArgumentError(f"The name of a module is a Python name, such as 'dense_1'; got {name!r}.")

    @property
    def name(self) -> str:
        """The name of the module."""
        return getattr(self, "_name", None) or _snake_case(type(self).__name__)

    @property
    def variables(self) -> tuple[Any, ...]:
        """The variables of this module and of those in it, each once."""
        return _once(_variables(self, set()))

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """The variables that tapes watch."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Any, ...]:
        """The other variables."""
        return tuple(variable for variable in self.variables if not variable.trainable)

    @property
    def submodules(self) -> "tuple[Module, ...]":
        """The modules in this one, and in those. Layers of Keras are not modules."""
        return tuple(_submodules(self, {id(self)}))

    @property
    def name_scope(self) -> Any:
        """A context manager that gives the name of the module, for ported code. It has no effect on the names of variables."""
        return _name_scope(self.name)

    @classmethod
    def with_name_scope(cls, method: _Method) -> _Method:
        """Return the method, for ported code: names of modules are not part of the names of variables."""
        return method


@contextmanager
def _name_scope(name: str) -> Iterator[str]:
    yield f"{name}/"


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _leaves(value: Any, above: tuple[int, ...] = ()) -> Iterator[Any]:
    """Yield what is in lists, tuples and dicts. A list in itself ends there."""
    if id(value) in above:
        return
    if isinstance(value, Mapping | list | tuple):
        for item in list(value.values()) if isinstance(value, Mapping) else list(value):
            yield from _leaves(item, (*above, id(value)))
    else:
        yield value


def _attributes(module: Module) -> list[Any]:
    """Return what the attributes of a module hold, in alphabetical order of the attributes."""
    connect_libraries()  # so that variables and layers of Keras are known
    return [leaf for value in _parts(module).values() for leaf in _leaves(value)]


def _variables(module: Module, seen: set[int]) -> Iterator[Any]:
    """Yield the variables of a module, its own ones first."""
    seen.add(id(module))
    inner = []
    for leaf in _attributes(module):
        if is_variable(leaf):
            yield leaf
        elif isinstance(leaf, Module):
            inner.append(leaf)
        elif (kind := kind_of(leaf)) is not None and kind.is_layer:
            yield from (variable for _, variable in kind.variables(leaf))
    for leaf in inner:
        if id(leaf) not in seen:
            yield from _variables(leaf, seen)


def _once(variables: Iterable[Any]) -> tuple[Any, ...]:
    found: dict[Any, Any] = {}
    for variable in variables:
        found.setdefault(ref_of(variable), variable)
    return tuple(found.values())


def _submodules(module: Module, seen: set[int]) -> Iterator[Module]:
    inner = []
    for leaf in _attributes(module):
        if isinstance(leaf, Module) and id(leaf) not in seen:
            seen.add(id(leaf))
            inner.append(leaf)
    for leaf in inner:
        yield leaf
        yield from _submodules(leaf, seen)


def _parts(module: Module) -> dict[str, Any]:
    return {attribute: vars(module)[attribute] for attribute in sorted(vars(module))}


register_parts(Module, _parts)
