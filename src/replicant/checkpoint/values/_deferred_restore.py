"""Where counterparts of a checkpoint's values may appear later: in lists that grow, and under new keys of dicts.

A look for them costs only a few dictionary accesses, because it happens before every use of a variable.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ._objects import kind_of, parts_of


@dataclasses.dataclass(frozen=True)
class Place:
    """The path to something that is missing, or to an object of a library, with the number of variables that it had."""

    path: tuple[str, ...]
    num_variables: int | None = None


def frontier(objects: Mapping[str, Any], keys: Sequence[str]) -> list[Place]:
    """Return the places where the values of `keys` may appear, each once.

    Those directly in `objects` are left out, because adding an object is noticed anyway.

    >>> [place.path for place in frontier({"a": [1, {"x": 2}]}, ["a/1/y/0", "a/1/y/1", "a/2", "b"])]
    [('a', '1', 'y'), ('a', '2')]
    """
    places = []
    for path in dict.fromkeys(_missing_part(objects, key) for key in keys):
        there = _at(objects, path)
        if there is not None or len(path) > 1:
            places.append(Place(path, None if there is None else _num_variables(there)))
    return places


def is_there(objects: Mapping[str, Any], place: Place, *, thoroughly: bool) -> bool:
    """Return whether there is something at that place now. If `thoroughly`, check whether objects of libraries have grown."""
    value = _at(objects, place.path)
    if value is None or place.num_variables is None:
        return value is not None
    kind = kind_of(value)
    return thoroughly and kind is not None and (kind.may_grow(value) or _num_variables(value) != place.num_variables)


def _at(objects: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = objects
    for part in path:
        value = _child(value, part)
        if value is None:
            return None
    return value


def _num_variables(value: Any) -> int:
    kind = kind_of(value)
    return 0 if kind is None else len(kind.variables(value))


def _missing_part(objects: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value: Any = objects
    place: tuple[str, ...] = ()
    rest = key
    while rest:
        part, value, rest = _step(value, rest)
        place = (*place, part)
        if value is None or kind_of(value) is not None:
            break
    return place


def _step(value: Any, rest: str) -> tuple[str, Any, str]:
    """The next part of a path, the value there or None, and the rest of the path. Keys of dicts may contain slashes."""
    if isinstance(value, Mapping):
        for name in map(str, value):
            if rest == name or rest.startswith(f"{name}/"):
                return name, _child(value, name), rest[len(name) + 1 :]
    part, _, after = rest.partition("/")
    return part, _child(value, part), after


def _child(value: Any, part: str) -> Any:
    value = value if (parts := parts_of(value)) is None else parts
    if isinstance(value, Mapping):
        return value[part] if part in value else next((value[key] for key in value if str(key) == part), None)
    if isinstance(value, list | tuple) and part.isdecimal():
        return value[int(part)] if int(part) < len(value) else None
    if isinstance(value, tuple):  # with names
        return getattr(value, part, None) if part in getattr(value, "_fields", ()) else None
    if jax.tree_util.all_leaves([value]):
        return None
    inside, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    return next((child for path, child in inside if jax.tree_util.keystr(path, simple=True, separator="/") == part), None)
