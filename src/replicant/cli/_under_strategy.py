"""Starts a program under a strategy that the program does not name: ``replicant run --strategy`` becomes this script.

    python _under_strategy.py STRATEGY script|module|code PROGRAM [ARGUMENTS ...]

It imports nothing of Replicant before the program imports Keras or Replicant. So what the program sets before that has its effect:
variables of the environment that JAX reads when it is imported, and virtual devices.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any


class _Loader(importlib.abc.Loader):
    """Loads Replicant, and tells it which strategy the program has."""

    def __init__(self, own: Any, strategy: str):
        self._own, self._strategy = own, strategy

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        importlib.import_module("replicant.strategies._of_program").use(self._strategy)


class _Finder(importlib.abc.MetaPathFinder):
    """Waits for the import of Replicant, and imports it before Keras."""

    def __init__(self, strategy: str):
        self._strategy = strategy

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "replicant":
            others = (finder.find_spec(fullname, path, target) for finder in list(sys.meta_path) if finder is not self)
            spec = next((spec for spec in others if spec is not None), None)
            if spec is not None:
                spec.loader = _Loader(spec.loader, self._strategy)
            return spec
        if fullname != "keras":
            return None
        importlib.import_module("replicant")
        sys.meta_path.remove(self)
        importlib.import_module("replicant.strategies._of_program").check_backend(os.environ)
        return importlib.util.find_spec(fullname)  # Replicant looks at this import too


def main() -> None:
    """Run the program as Python would."""
    strategy, kind, program, *arguments = sys.argv[1:]
    # With os.path, as Python itself does it: the program starts with as few modules as possible.
    folder = {"script": os.path.dirname(os.path.realpath(program)), "module": os.getcwd(), "code": ""}[kind]  # noqa: PTH109, PTH120
    if not sys.flags.safe_path:  # then Python has put the folder of this file there
        sys.path[:1] = [] if kind == "script" and pkgutil.get_importer(program) else [folder]  # a folder or archive comes itself
    sys.argv = ["-c" if kind == "code" else program, *arguments]
    sys.meta_path.insert(0, _Finder(strategy))
    try:
        if kind == "module":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        elif kind == "script":
            runpy.run_path(program, run_name="__main__")
        else:
            module = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), vars(module))  # noqa: S102 - it is the user's program
    except SystemExit as end:
        if not end.code:
            _tell_if_unused(strategy)
        raise
    _tell_if_unused(strategy)


def _tell_if_unused(strategy: str) -> None:
    of_program = sys.modules.get("replicant.strategies._of_program")
    if of_program is None or not of_program.is_made():
        print(
            f"replicant run: --strategy {strategy} had no effect, because the program made no model, variable or distributed data.",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
