"""Tells the user's own code from that of Python, of installed packages and of Replicant."""

import functools
import sys
import sysconfig
import types
from collections.abc import Collection
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


def is_of_users(value: types.FunctionType | type | types.ModuleType, opened: Collection[str] = ()) -> bool:
    """Whether a function, class or module is the user's. Its file decides; if it has none, its name does.

    Args:
        value: The function, class or module.
        opened: Installed packages (`package_of`) that count as the user's.
    """
    file = _file_of(value)
    if file is None:
        root = root_of(value)
        return root not in sys.stdlib_module_names or root == "__main__"
    package = package_of(file)
    return package is None or package in opened


def _file_of(value: types.FunctionType | type | types.ModuleType) -> str | None:
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(value.__module__) if root_of(value) else None
    return getattr(module, "__dict__", {}).get("__file__")  # not an attribute, which code of the module may make


def root_of(value: Any) -> str:
    """Return the package of a function, class or module by its name; "" for code without one, which ``exec`` has run."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    written = isinstance(value, types.FunctionType) or (isinstance(value, type) and bool(value.__flags__ & HEAP_TYPE))
    return "" if not isinstance(name, str) or (name == "builtins" and written) else name.partition(".")[0]
