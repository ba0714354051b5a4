"""Connects Flax NNX: modules that were made outside are state of a step, wherever it uses them."""

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import jax
from flax import nnx

from ..checkpoint.values._objects import register_parts
from ..errors import VariableError
from ..variables._known import objects, register_variable_type
from ._hooks import install, mirror_welford
from ._stored import Aside, NnxRef, is_of_keras, is_outside

__all__ = ["Aside", "following", "modes", "reached", "tracing"]


_raw_value = install()


@contextmanager
def tracing() -> Iterator[None]:
    """Do nothing: Variables ask for the current recorder by themselves."""
    yield


def ref_of_nnx(variable: Any) -> NnxRef:
    """Return the Ref of a Variable that holds one array.

    Raises:
        VariableError: If it holds several arrays, or none.
    """
    cell = _raw_value.cell(variable)
    if cell is None or len(cell.refs) != 1 or not isinstance(cell.leaves[0], NnxRef):
        held = "a value of a trace" if cell is None and not is_outside(variable) else f"a {type(variable.get_raw_value()).__name__}"
        raise VariableError(
            f"An nnx.{type(variable).__name__} that holds {held} cannot be a source of a gradient or part of a checkpoint. Each "
            "Variable there holds one array and is made outside of the step: use one nnx.Variable per array."
        )
    return cell.refs[0]


def gradients(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the Params of a module, or all Variables of a State, and what puts their gradients into a State like it."""
    state = value if isinstance(value, nnx.State) else nnx.state(value, nnx.Param)
    variables, tree = jax.tree.flatten(state, is_leaf=lambda x: isinstance(x, nnx.Variable))

    def rebuilt(found: list[Any]) -> Any:
        pairs = zip(variables, found, strict=True)
        return jax.tree.unflatten(tree, [g if g is None else variable.copy(g) for variable, g in pairs])

    return variables, rebuilt


def following(refs: Container[Any]) -> Callable[[], tuple[Any, ...]] | None:
    """Return what tells a program whether its Variables still have their Refs."""
    mine = [ref for ref in refs if isinstance(ref, NnxRef)]  # type: ignore[attr-defined]  # a set
    if not mine:
        return None
    return lambda: tuple(map(_left, mine))


_left = attrgetter("left")


def reached(value: Any) -> tuple[list[str], list[Any]] | None:
    """Return the attributes of a module that its computation depends on, and the modules inside it; None for other objects."""
    if isinstance(value, nnx.Variable):
        return [], []
    if not isinstance(value, nnx.Pytree) or is_of_keras(type(value)):
        return None
    if isinstance(value, nnx.metrics.Welford):
        mirror_welford(_raw_value, value)
    _name_variables(value)
    content = vars(value)
    inner = [x for x in jax.tree.leaves(list(content.values()), is_leaf=_is_node) if _is_node(x)]
    return [name for name in content if name != "_pytree__state"], inner


def modes(value: Any) -> list[str]:
    """Return the attributes that even a ``function`` watches: ``model.eval()`` sets some of them."""
    return [name for name in vars(value) if name != "_pytree__state"] if isinstance(value, nnx.Pytree) else []


def _is_node(value: Any) -> bool:
    return isinstance(value, nnx.Pytree)


def _name_variables(module: Any) -> None:
    """Name the Variables of a module by their paths, for messages. The first module that is reached gives the names."""
    for path, node in nnx.iter_graph(module):
        cell = _raw_value.cell(node) if isinstance(node, nnx.Variable) else None
        for ref in () if cell is None else cell.refs:
            if not ref.named:
                ref.name, ref.named = "/".join(map(str, path)), True


def parts(module: Any) -> Mapping[str, Any]:
    """Return what a checkpoint saves of a module: its attributes with Variables or modules in them."""
    return {name: value for name, value in vars(module).items() if not name.startswith("_pytree__")}


register_variable_type(nnx.Variable, ref_of_nnx)
objects.register((nnx.Pytree, nnx.Variable), (nnx.State,), is_outside, gradients)
register_parts(nnx.Pytree, parts)
