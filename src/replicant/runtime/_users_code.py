"""Tells the user's own code from that of Python, of installed packages and of Replicant."""

import functools
import sysconfig
import types
from pathlib import Path
from typing import Any

_PYTHON = sysconfig.get_path("stdlib")
_REPLICANT = str(Path(__file__).parents[1])
HEAP_TYPE = 1 << 9  # the flag of classes that Python code has made
_INSTALLED = ("site-packages", "dist-packages")
# Packages whose objects hold things that change by themselves, or nothing that decides what a function computes.
CLOSED = {"_io", "concurrent", "io", "jax", "jaxlib", "logging", "multiprocessing", "replicant", "tensorflow", "threading", "torch"}


@functools.cache
def package_of(path: str) -> str | None:
    """Return the folder or name of the library that a file belongs to; None if it is the user's."""
    parts = Path(path).parts
    for folder in _INSTALLED:
        if folder in parts:
            start = parts.index(folder)
            return str(Path(*parts[: start + 2]))
    for folder in (_REPLICANT, _PYTHON):
        if path.startswith(folder):
            return folder
    return "<frozen" if path.startswith("<frozen") else None


def is_users(path: str) -> bool:
    """Whether a Python file belongs to the user, not to Python, an installed package or Replicant."""
    return package_of(path) is None


def root_of(value: Any) -> str:
    """Return the package of a function, class or module by its name; "" for code without one, which ``exec`` has run."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    written = isinstance(value, types.FunctionType) or (isinstance(value, type) and bool(value.__flags__ & HEAP_TYPE))
    return "" if not isinstance(name, str) or (name == "builtins" and written) else name.partition(".")[0]
