"""Whether the installed Keras or Replicant has a name."""

import functools
import importlib
from typing import Any


@functools.cache
def exists(dotted: str) -> bool:
    """Whether Keras or Replicant has a public name."""
    return found(dotted) is not None


@functools.cache
def found(dotted: str) -> Any:
    """What a public name of Keras or Replicant stands for, or None."""
    root, *rest = dotted.split(".")
    if root not in ("keras", "replicant"):
        return None
    value: Any = importlib.import_module(root)
    for i, name in enumerate(rest):
        if name.startswith("_") and i < len(rest) - 1:
            return None
        value = getattr(value, name, None)
        if value is None:
            return None
    return value
