"""Functions of the user's own modules, which an argument of a command names."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ArgumentError


def named_function(text: str, instead: str) -> Callable[[], Any]:
    """Return the function that is named MODULE:FUNCTION. Modules are looked for in the current folder first.

    Args:
        text: The name.
        instead: What the argument must be, for a message.

    Raises:
        ArgumentError: If it is something else, or if there is no such module or function.
    """
    module, _, function = text.partition(":")
    if not function:
        raise ArgumentError(f"{text!r} is {instead}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"There is no module {module!r} here: {error}.") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise ArgumentError(f"Module {module!r} has no function {function!r}.")
    return found
