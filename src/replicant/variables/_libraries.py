"""Connects libraries that have variables of their own. The provider of a library is imported once the library is in use."""

import importlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from ..errors import BackendError
from ..replicas._context import has_program_strategy
from ..runtime import _imports
from ..tracing.jaxprs._primitive_names import check

# For each library, the module that connects its variables.
_PROVIDERS = {"keras": "replicant.keras.state._provider", "flax.nnx": "replicant.nnx._provider"}
_CONTROL_FLOW = "replicant.variables.control_flow._install"  # which needs variables, and these need this module
# What a library is told of Replicant's types, once it is in use.
_GREETINGS = {
    "flax.serialization": "replicant.nnx._serialization",
    "flax.linen.normalization": "replicant.nnx._linen",
    "haiku": "replicant.nnx._haiku",
}


def connect_libraries() -> list[Any]:
    """Return the providers of the libraries in use. Each has a ``tracing()`` context manager, which surrounds every trace."""
    for library, module in _GREETINGS.items():
        if library in sys.modules and module not in sys.modules:
            importlib.import_module(module)
    return [importlib.import_module(module) for library, module in _PROVIDERS.items() if library in sys.modules]


def connect_keras_for_fit() -> None:
    """Connect Keras now or, if it is not in use yet, at the end of its import. `fit` then takes datasets without a strategy.

    Keras on another backend is left alone, because the dataset may be for something else.
    """
    if _connect_keras not in _imports.after_keras:
        _imports.after_keras.append(_connect_keras)
        _connect_keras()


def _connect_keras() -> None:
    config = getattr(sys.modules.get("keras"), "config", None)
    if config is None or config.backend() != "jax":  # not imported, or another thread is importing it
        return
    try:
        connect_libraries()
    except BackendError as error:
        if has_program_strategy():
            raise
        warnings.warn(f"Keras's fit, evaluate and predict cannot read datasets of Replicant: {error}", stacklevel=4)


@contextmanager
def tracing() -> Iterator[None]:
    """Route the variables of all libraries to the current recorder. This surrounds the outermost trace of a program."""
    check()
    importlib.import_module(_CONTROL_FLOW).install()
    with ExitStack() as stack:
        for provider in connect_libraries():
            context: AbstractContextManager[Any] = provider.tracing()
            stack.enter_context(context)
        yield
