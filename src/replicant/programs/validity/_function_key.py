"""Decides whether two functions are the same program.

A lambda in a loop is a new object each time, but the same code over the same objects. Compiling it again at every step would be a
thousand times slower than the step.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

from ...runtime._plain_values import PLAIN, plain_key


class _Same:
    """An object that is compared by identity, and kept alive so that no other object gets its id."""

    __slots__ = ("_object",)

    def __init__(self, value: Any):
        self._object = value

    def __hash__(self) -> int:
        return id(self._object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._object is other._object


def function_key(fn: Callable[..., Any]) -> Any:
    """Return a key that is equal for functions of the same code over the same closed-over objects.

    >>> keys = {function_key(lambda x: x + 1) for _ in range(3)}
    >>> len(keys)
    1
    """
    if isinstance(fn, functools.partial):
        return ("partial", function_key(fn.func), _values(fn.args), _values(sorted(fn.keywords.items())))
    if isinstance(fn, types.MethodType):
        return ("method", _Same(fn.__self__), function_key(fn.__func__))
    if isinstance(fn, types.FunctionType):
        cells = tuple(_value(_contents(cell)) for cell in fn.__closure__ or ())
        defaults = (_values(fn.__defaults__ or ()), _values(sorted((fn.__kwdefaults__ or {}).items())))
        return ("function", fn.__code__, _Same(fn.__globals__), cells, defaults)
    return _Same(fn)


_EMPTY_CELL = object()


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return _EMPTY_CELL


def _values(items: Any) -> tuple[Any, ...]:
    return tuple(_value(item) for item in items)


def _value(item: Any) -> Any:
    if isinstance(item, PLAIN):
        return plain_key(item)
    if type(item) is tuple:
        return _values(item)
    if isinstance(item, types.FunctionType) and item.__name__ == "<lambda>":
        return function_key(item)
    return _Same(item)
