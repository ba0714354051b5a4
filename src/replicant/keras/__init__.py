"""Keras 3 under a strategy. Importing it requires Keras with the JAX backend; Replicant does so by itself once Keras is in use."""

import importlib
from typing import TYPE_CHECKING, Any

from . import _checkpoint as _checkpoint
from . import _hooks as _hooks
from ._batch_statistics import use_replica_statistics as use_replica_statistics

if TYPE_CHECKING:
    from . import callbacks

__all__ = ["callbacks", "use_replica_statistics"]


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
