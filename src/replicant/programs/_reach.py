"""Finds the Python objects that the code of a function reaches: what it closes over, and the globals and attributes that it names.

Bytecode tells which names a function loads, and from which objects: ``self.model.scale`` is followed from object to object. For an
attribute of anything else (``for layer in layers: layer.scale``), only the name is known, so it counts for every object that was
reached. Functions and classes of the user's own modules are entered; those of libraries are not. This runs once per compilation.
"""

import dataclasses
import dis
import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..replicas._values import is_array, is_distributed, is_host_array
from ..variables._libraries import connect_libraries
from ._held import Held, is_object, show

# Their functions and objects are not entered: they do not depend on what a program changes between two steps.
_LIBRARIES = {
    "_pytest", "absl", "builtins", "chex", "equinox", "flax", "grain", "haiku", "hypothesis", "IPython", "jax", "jaxlib",
    "jaxtyping", "keras", "keras_hub", "matplotlib", "ml_dtypes", "numpy", "optax", "orbax", "pandas", "PIL", "pluggy", "pytest",
    "ray", "replicant", "scipy", "sklearn", "tensorflow", "torch", "tqdm", "wandb",
}  # fmt: skip
_HEAP_TYPE = 1 << 9  # the flag of classes that Python code has made
_MAX_OBJECTS = 20_000
_MAX_ITEMS = 1_000  # of one list or dictionary
_MAX_BYTES = 1_024  # of one NumPy array that is compared at every call
_LOADS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"}
_LOADS_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"}
_LOADS_CELL = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "STORE_DEREF"}
_BETWEEN = {"CACHE", "PUSH_NULL", "RESUME", "PRECALL", "NOP", "EXTENDED_ARG", "COPY_FREE_VARS"}


@dataclasses.dataclass(frozen=True)
class Chain:
    """Names that follow each other in the code, ``root.attribute.attribute``. `kind` is "global", "local" or "import"."""

    kind: str
    root: str
    attributes: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def _chains(code: types.CodeType) -> tuple[tuple[Chain, ...], frozenset[str]]:
    """Return the chains in one piece of code, and the names of attributes of anything else."""
    found: dict[Chain, None] = {}
    loose: set[str] = set()
    chain: Chain | None = None
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in _LOADS_ATTRIBUTE:
            if chain is None:
                loose.add(value)
            else:
                chain = dataclasses.replace(chain, attributes=(*chain.attributes, value))
            continue
        if name in _BETWEEN:
            continue
        if chain is not None:
            found[chain] = None
        chain = None
        if name in _LOADS_GLOBAL:
            chain = Chain("global", value, ())
        elif name in _LOADS_CELL or name.startswith(("LOAD_FAST", "STORE_FAST")):
            # From Python 3.13 on, one instruction may load two variables; the second ends up on top of the stack.
            names = value if isinstance(value, tuple) else (value,)
            found.update((Chain("local", n, ()), None) for n in names)
            if not name.startswith("STORE_FAST") or name == "STORE_FAST_LOAD_FAST":
                chain = Chain("local", names[-1], ())
        elif name == "IMPORT_NAME":
            chain = Chain("import", value, ())
        elif name == "LOAD_SUPER_ATTR":
            loose.add(value)
    if chain is not None:
        found[chain] = None
    return tuple(found), frozenset(loose)


def attribute_names(code: types.CodeType) -> set[str]:
    """Return all attributes that a piece of code names."""
    chains, loose = _chains(code)
    return {name for chain in chains for name in chain.attributes} | loose


@dataclasses.dataclass
class Holder:
    """Something whose content Python code can change: an object, class, module, list, dictionary or cell of a function.

    Attributes:
        label: How the code would write it.
        target: The object itself.
        exact: The names that the code certainly reads.
        loose: The names that the code may read.
        layer: Whether it is an object of a library, which tells what counts.
        modes: The names that are watched even inside a ``function``.
        sure: Whether the code certainly reads the holder itself.
    """

    label: str
    target: Any
    exact: dict[str, None] = dataclasses.field(default_factory=dict)
    loose: dict[str, None] = dataclasses.field(default_factory=dict)
    layer: bool = False
    modes: Sequence[str] = ()
    sure: bool = True

    def content(self) -> Mapping[Any, Any]:
        """Return what it holds now, by name, key or index."""
        target = self.target
        if isinstance(target, types.CellType):
            try:
                return {"cell_contents": target.cell_contents}
            except ValueError:  # a name that is not bound yet
                return {}
        if isinstance(target, list):
            return dict(enumerate(target))
        if isinstance(target, dict):
            return target
        return attributes_of(target)

    def path(self, key: Any) -> str:
        """Return how the code would write one of its entries."""
        if isinstance(self.target, types.CellType):
            return self.label
        if isinstance(self.target, list | dict) and self.label != "":
            return f"{self.label}[{key!r}]"
        return f"{self.label}.{key}" if self.label else str(key)


def attributes_of(target: Any) -> Mapping[str, Any]:
    """Return the own attributes of an object, a class or a module."""
    try:
        return vars(target)
    except TypeError:
        names = [n for cls in type(target).__mro__ for n in _slots(cls)]
        return {n: getattr(target, n) for n in names if hasattr(target, n)}


def _slots(cls: type) -> Iterable[str]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def is_plain(value: Any) -> bool:
    """Return whether `value` contains nothing to look into."""
    return value is None or isinstance(value, bool | int | float | complex | str | bytes | np.dtype) or is_array(value)


def holds_arrays(value: Any) -> bool:
    """Return whether `value` is an array or contains arrays."""
    if is_array(value) or is_distributed(value) or is_host_array(value):
        return True
    return not is_plain(value) and any(map(is_array, jax.tree.leaves(value)))


def _root_module(value: Any) -> str:
    """Return the package of a function, class or module; "" for code without one, which ``exec`` has run."""
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    written = isinstance(value, types.FunctionType) or (isinstance(value, type) and bool(value.__flags__ & _HEAP_TYPE))
    return "" if not isinstance(name, str) or (name == "builtins" and written) else name.partition(".")[0]


def _is_users(value: Any) -> bool:
    """Return whether a function, class or module is the user's, so that its code is entered."""
    root = _root_module(value)
    return root not in _LIBRARIES and (root not in sys.stdlib_module_names or root == "__main__")


class Reach:
    """What a function reaches when it is called with these arguments. Arrays and structures among them do not count."""

    def __init__(self, fn: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None):
        self.holders: dict[int, Holder] = {}
        self.arrays: list[tuple[str, np.ndarray]] = []  # NumPy arrays that are small enough to compare at every call
        self._loose: set[str] = set()
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that no other object gets their ids
        self._codes: set[tuple[types.CodeType, tuple[Any, ...]]] = set()
        self._providers = [p for p in connect_libraries() if hasattr(p, "reached")]
        for leaf in jax.tree.leaves((args, kwargs)):
            if isinstance(leaf, Held):
                self._visit(leaf.target, type(leaf.target).__name__)
        args, kwargs = show((args, kwargs))
        for value in (*args, *(kwargs or {}).values()):
            if _is_one(value):
                self._visit(value, type(value).__name__)
        self._visit_callable(fn, args, dict(kwargs or {}))
        self._spread()

    def _spread(self) -> None:
        """Enter what loosely named attributes lead to, until nothing new is found."""
        done = -1
        while done != (done := len(self._loose) + len(self._seen) + len(self.holders)):
            for holder in list(self.holders.values()):
                of_library = holder.layer and not _is_users(type(holder.target))
                if not isinstance(holder.target, types.CellType | list | dict) and not of_library:
                    for name in self._loose & holder.content().keys():
                        holder.loose[name] = None
                    self._visit_class_names(holder, self._loose)
                    for name in holder.loose:
                        self._visit(holder.content().get(name), holder.path(name), sure=False)

    def _holder(self, target: Any, label: str, *, sure: bool = True) -> Holder:
        return self.holders.setdefault(id(target), Holder(label, target, sure=sure))

    def _visit(self, value: Any, label: str, *, sure: bool = True) -> None:
        """Note an object, and enter it."""
        if isinstance(value, np.ndarray) and sure and value.nbytes <= _MAX_BYTES and id(value) not in self._seen:
            self._seen[id(value)] = value
            self.arrays.append((label, value))
        if is_plain(value) or is_distributed(value) or id(value) in self._seen or len(self._seen) > _MAX_OBJECTS:
            return
        self._seen[id(value)] = value
        if isinstance(value, list | tuple | set | frozenset | dict):
            self._visit_items(value, label, sure=sure)
        elif isinstance(value, type | types.ModuleType):
            if _is_users(value):
                self._holder(value, label)
        elif isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            self._visit_callable(value)
        elif hasattr(value, "__wrapped__") or hasattr(value, "python_function"):  # jax.jit, replicant.function
            self._visit_callable(getattr(value, "__wrapped__", None) or getattr(value, "python_function", None))
        else:
            self._visit_instance(value, label)

    def _visit_items(self, value: Any, label: str, *, sure: bool) -> None:
        if len(value) > _MAX_ITEMS or (isinstance(value, dict) and "__builtins__" in value):
            return
        if isinstance(value, list | dict):
            self._holder(value, label, sure=sure)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            self._visit(item, f"{label}[{key!r}]", sure=sure)

    def _visit_instance(self, value: Any, label: str) -> None:
        for provider in self._providers:
            reached = provider.reached(value)
            if reached is not None:
                names, inner = reached
                holder = self._holder(value, label)
                holder.layer = True
                holder.modes = provider.modes(value) if hasattr(provider, "modes") else ()
                holder.exact.update(dict.fromkeys(names))
                for item in inner:
                    self._visit(item, f"{label}.{getattr(item, 'name', type(item).__name__)}")
                self._visit_methods(value, ("__call__",) if holder.modes else ("call",), label)
                return
        if _root_module(type(value)) not in _LIBRARIES:
            self._holder(value, label)
            self._visit_methods(value, ("__call__",), label)

    def _visit_methods(self, value: Any, names: Iterable[str], label: str) -> None:
        for name in names:
            found = _class_attribute(type(value), name)
            if isinstance(found, types.FunctionType) and _is_users(found):
                self._visit_code(found, _bound(found, (value,), {}), label)

    def _visit_callable(self, fn: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        if isinstance(fn, functools.partial):
            for value in (*fn.args, *fn.keywords.values()):
                self._visit(value, type(value).__name__)
            self._visit_callable(fn.func, (*fn.args, *args), {**fn.keywords, **(kwargs or {})})
        elif isinstance(fn, types.MethodType):
            self._visit(fn.__self__, "self")
            self._visit_callable(fn.__func__, (fn.__self__, *args), kwargs)
        elif isinstance(fn, types.FunctionType):
            if _is_users(fn):
                self._visit_code(fn, _bound(fn, args, kwargs or {}), "")
            elif hasattr(fn, "__wrapped__"):  # a user's function inside a library's wrapper
                self._visit(getattr(fn, "__wrapped__", None), fn.__name__)
        else:
            self._visit(fn, type(fn).__name__)

    def _visit_code(self, fn: types.FunctionType, known: dict[str, Any], label: str) -> None:
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            self._holder(cell, name).exact["cell_contents"] = None
            for value in Holder(name, cell).content().values():
                known[name] = value
                self._visit(value, name)
        for value in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()):
            self._visit(value, type(value).__name__)
        self._follow(fn.__code__, fn.__globals__, known, label)

    def _follow(self, code: types.CodeType, names: dict[str, Any], known: dict[str, Any], label: str) -> None:
        key = (code, tuple(sorted((name, id(value)) for name, value in known.items())))
        if key in self._codes:
            return
        self._codes.add(key)
        chains, loose = _chains(code)
        self._loose |= loose
        for chain in chains:
            if chain.kind == "global" and chain.root in names:
                if id(names) not in self.holders:
                    self.holders[id(names)] = Holder("", names)
                self.holders[id(names)].exact[chain.root] = None
                self._visit(names[chain.root], chain.root)
                self._along(names[chain.root], chain.root, chain.attributes)
            elif chain.kind == "local" and chain.root in known:
                self._along(known[chain.root], chain.root, chain.attributes)
            elif chain.kind == "import" and chain.root in sys.modules:
                self._visit(sys.modules[chain.root], chain.root)
                self._loose |= set(chain.attributes)
            else:
                self._loose |= set(chain.attributes)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                inner = {name: value for name, value in known.items() if name in constant.co_freevars}
                self._follow(constant, names, inner, label)

    def _along(self, value: Any, label: str, attributes: tuple[str, ...]) -> None:
        """Follow a chain from an object as far as the objects along it are known."""
        for i, name in enumerate(attributes):
            self._visit(value, label)
            holder = self.holders.get(id(value))
            if holder is None or isinstance(holder.target, types.CellType | list | dict):
                return
            content = holder.content()
            if name in content:
                holder.exact[name] = None
                value, label = content[name], holder.path(name)
                continue
            found = self._visit_class_names(holder, (name,))
            if found is _NOTHING:
                if not holder.layer:
                    self._loose |= set(attributes[i:])
                return
            value, label = found, holder.path(name)
        self._visit(value, label)

    def _visit_class_names(self, holder: Holder, names: Iterable[str]) -> Any:
        """Return the class attribute of an object with one of these names. Enter methods and properties instead."""
        owner = holder.target if isinstance(holder.target, type) else type(holder.target)
        if isinstance(holder.target, types.ModuleType):
            return _NOTHING
        plain: Any = _NOTHING
        for name in list(names):  # a copy, because entering methods adds names
            found = _class_attribute(owner, name)
            if found is _NOTHING:
                continue
            for function in _functions_in(found):
                if _is_users(function):
                    bound = () if isinstance(holder.target, type) else (holder.target,)
                    self._visit_code(function, _bound(function, bound, {}), holder.label)
            if not hasattr(type(found), "__get__") and not is_plain_callable(found):
                holder.exact[name] = None
                plain = found
        if isinstance(holder.target, type):
            for function in _functions_in(holder.target.__dict__.get("__init__")):
                self._visit_code(function, {}, holder.label)
        return plain


_NOTHING = object()
_LEAF = jax.tree.structure(0)


def _is_one(value: Any) -> bool:
    """Return whether `value` is one object, and no structure of others."""
    return is_object(value) or jax.tree.structure(value) == _LEAF


def is_plain_callable(value: Any) -> bool:
    """Return whether `value` is a function or descriptor from the body of a class."""
    return isinstance(value, types.FunctionType | staticmethod | classmethod | property)


def _class_attribute(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        if name in base.__dict__ and _root_module(base) not in _LIBRARIES:
            return base.__dict__[name]
    return _NOTHING


def _functions_in(value: Any) -> Iterator[types.FunctionType]:
    """Yield the function behind a method, a property, or a static or class method."""
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, functools.cached_property):
        value = value.func
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    value = getattr(value, "python_function", value)
    if isinstance(value, types.FunctionType):
        yield value


def _bound(fn: types.FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters whose objects are known."""
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    pairs = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: value for name, value in pairs.items() if not is_plain(value) and _is_one(value)}
