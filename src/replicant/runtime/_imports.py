"""Makes importing Keras quicker, by leaving until later what hardly any training program uses.

Keras imports scikit-learn for its wrappers, wherever it is installed, and SciPy for JAX's sparse solvers. Together they take longer
than Keras itself. So while Keras is imported, the code of the modules in ``DEFERRED`` does not run. It runs when one of their names
is first asked for, and from then on they are ordinary modules. scikit-learn and SciPy themselves are always the real ones.
"""

import importlib.abc
import importlib.machinery
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

from ._collector import CollectionPaused

# The modules whose code waits, and what they import. Keras and JAX import them as a whole (`from keras import wrappers`). Were a
# version to import one of their names, their code would run at once, as it does without this table.
DEFERRED = {
    "keras.wrappers": "scikit-learn",
    "jax.experimental.sparse.linalg": "SciPy's sparse and linear solvers",
    "jax.experimental.pallas.tpu": "the compiler of kernels for TPUs",
}

# Called once Keras has been imported, if that happens after the import of Replicant.
after_keras: list[Callable[[], None]] = []


class Deferred(types.ModuleType):
    """A module whose code runs when one of its names is first read, set or listed. Then it becomes an ordinary module."""

    # No super() below: once `load` returns, this is no longer the class of the module.

    def __getattr__(self, name: str) -> Any:
        if _is_special(name) and name != "__all__":  # tools ask all modules for such names, and this one has none but its own
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        load(self)
        return types.ModuleType.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not _is_special(name):
            load(self)
        types.ModuleType.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        load(self)
        types.ModuleType.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        load(self)
        return list(types.ModuleType.__dir__(self))

    @property
    def __dict__(self) -> dict[str, Any]:  # as vars(module) asks for it
        load(self)
        return vars(types.ModuleType)["__dict__"].__get__(self)


class _Waiting:
    """The state of a module whose code has not run to its end."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.has_begun = False


def load(module: types.ModuleType) -> None:
    """Run the code of a deferred module, if it has not run yet. Other threads wait until it has ended."""
    spec: Any = module.__spec__
    waiting = spec.loader_state
    if not isinstance(waiting, _Waiting):
        return
    with waiting.lock:
        if waiting.has_begun or spec.loader_state is None:
            return
        waiting.has_begun = True
        try:
            spec.loader.exec_module(module)
        finally:
            waiting.has_begun = False  # after an error, the next one to ask tries again
        module.__class__ = types.ModuleType
        spec.loader_state = None


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _Loader(importlib.abc.Loader):
    """Takes the place of a module's own loader until the module is made."""

    def __init__(self, own: Any):
        self._own = own

    def __getattr__(self, name: str) -> Any:  # for those who look for the source of the module, for instance
        return getattr(self._own, name)

    def _step_aside(self, module: types.ModuleType) -> Any:
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._own
        return spec


class _DeferringLoader(_Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Deferred(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        self._step_aside(module).loader_state = _Waiting()


class _KerasLoader(_Loader):
    def __init__(self, own: Any, finder: "Finder"):
        super().__init__(own)
        self._finder = finder

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._step_aside(module)
        with CollectionPaused(stays=True):
            with self._finder:
                self._own.exec_module(module)
            for call in after_keras:
                call()


class Finder(importlib.abc.MetaPathFinder):
    """Waits for the import of Keras, and defers modules until that has ended."""

    def __init__(self) -> None:
        self._defers = False

    def __enter__(self) -> None:
        self._defers = True

    def __exit__(self, kind: object, *rest: object) -> None:
        self._defers = False
        if kind is None and self in sys.meta_path:  # after an error, the program may try again
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find what the other finders find, and put another loader in front of its own."""
        is_keras = fullname == "keras"
        if not is_keras and not (self._defers and fullname in DEFERRED):
            return None
        others = (other.find_spec(fullname, path, target) for other in list(sys.meta_path) if other is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _KerasLoader(spec.loader, self) if is_keras else _DeferringLoader(spec.loader)
        return spec


def install() -> None:
    """Make the import of Keras quicker, if it has not been imported yet."""
    there = any(type(finder).__module__ == __name__ for finder in sys.meta_path)  # if this package is imported again
    if "keras" not in sys.modules and not there:
        sys.meta_path.insert(0, Finder())
