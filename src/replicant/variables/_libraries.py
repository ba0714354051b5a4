"""Libraries with variables of their own: a provider of each comes in once the library is in use."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from ..tracing._primitive_names import check

# Libraries whose variables we know, and the module that connects them. Imported once the library itself is in use.
_PROVIDERS = {"keras": "replicant.keras._provider"}


def connect_libraries() -> list[Any]:
    """The providers of the libraries in use; each has ``tracing() -> context manager``, entered around every trace."""
    return [importlib.import_module(module) for library, module in _PROVIDERS.items() if library in sys.modules]


@contextmanager
def tracing() -> Iterator[None]:
    """Route every library's variables to the current recorder, around the outermost trace of a program."""
    check()
    with ExitStack() as stack:
        for provider in connect_libraries():
            context: AbstractContextManager[Any] = provider.tracing()
            stack.enter_context(context)
        yield
