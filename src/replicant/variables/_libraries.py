"""Connects libraries that have variables of their own. The provider of a library is imported once the library is in use."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from ..tracing._primitive_names import check

# For each library, the module that connects its variables.
_PROVIDERS = {"keras": "replicant.keras._provider"}


def connect_libraries() -> list[Any]:
    """Return the providers of the libraries in use. Each has a ``tracing()`` context manager, which surrounds every trace."""
    return [importlib.import_module(module) for library, module in _PROVIDERS.items() if library in sys.modules]


@contextmanager
def tracing() -> Iterator[None]:
    """Route the variables of all libraries to the current recorder. This surrounds the outermost trace of a program."""
    check()
    with ExitStack() as stack:
        for provider in connect_libraries():
            context: AbstractContextManager[Any] = provider.tracing()
            stack.enter_context(context)
        yield
