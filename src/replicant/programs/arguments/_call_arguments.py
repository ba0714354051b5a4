"""Explains a call of a replica function that does not take the arguments that ``run`` was given."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import ArgumentTypeError


@contextmanager
def arguments_explained(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Iterator[None]:
    """Call a function in the ``with`` block.

    Raises:
        ArgumentTypeError: In place of a TypeError, if the function does not take these arguments, but takes them taken apart or
            together.
    """
    try:
        yield
    except TypeError as error:
        if _takes(fn, args, kwargs):
            raise
        name, parameters = getattr(fn, "__qualname__", repr(fn)), inspect.signature(fn)
        if len(args) == 1 and isinstance(args[0], tuple | list) and _takes(fn, args[0], kwargs):
            found = f"args has one element, a {type(args[0]).__name__} of {len(args[0])}"
            advice = "to pass each of them by itself, write args=batch instead of args=(batch,)"
        elif len(args) > 1 and _takes(fn, (args,), kwargs):
            found = f"args has {len(args)} elements"
            advice = "to pass them as one tuple, write args=(batch,) instead of args=batch"
        else:
            raise
        raise ArgumentTypeError(f"run: {name!r} takes {parameters}, but {found}; {advice}.") from error


def _takes(fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function can be called like this, as far as Python knows."""
    try:
        inspect.signature(fn).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # a function in C that does not say
        return True
    return True
