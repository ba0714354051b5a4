"""Saves the layers of ``replicant.keras.layers`` under Keras's names, and loads these names as Replicant's layers.

So a model goes both ways between programs with TensorFlow and programs without.
"""

import importlib
import sys
from collections.abc import Callable
from typing import Any

_LAYERS = "replicant.keras.layers"
_NAMES = ("Discretization", "HashedCrossing", "Hashing", "IntegerLookup", "StringLookup", "TextVectorization")
_SAVED = {f"keras.layers.{name}": name for name in _NAMES}


def class_of(original: Callable[[str], Any], name: str) -> Any:
    """Return the class of a name in a saved configuration."""
    if name in _SAVED:
        return getattr(importlib.import_module(_LAYERS), _SAVED[name])
    return original(name)


def name_of(original: Callable[[Any], Any], symbol: Any) -> Any:
    """Return the name under which a class is saved."""
    layers = sys.modules.get(_LAYERS)
    if layers is not None and isinstance(symbol, type) and symbol.__module__.startswith(f"{_LAYERS}."):
        return next((name for name, own in _SAVED.items() if getattr(layers, own) is symbol), None)
    return original(symbol)
