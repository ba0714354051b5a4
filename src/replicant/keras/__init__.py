"""Keras 3 under a strategy. Replicant imports this package once Keras is in use. It needs Keras with the JAX backend."""

import importlib
from typing import TYPE_CHECKING, Any

from . import _checkpoint as _checkpoint
from . import _hooks as _hooks
from ._batch_statistics import use_replica_statistics as use_replica_statistics
from .micro_batches._step import use_micro_batches as use_micro_batches

if TYPE_CHECKING:
    from . import callbacks, layers, utils
    from .weights import WeightsReport, load_weights

__all__ = [
    "WeightsReport",
    "callbacks",
    "layers",
    "load_weights",
    "use_micro_batches",
    "use_replica_statistics",
    "utils",
]


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "layers", "utils"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in ("WeightsReport", "load_weights"):
        return getattr(importlib.import_module(f"{__name__}.weights"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
