"""Finds what a trace depends on: what the code that runs in it names, and all that this leads to.

For each piece of the user's code that runs, its bytecode tells which names it loads, and from which objects:
``self.model.scale`` is followed from object to object. For an attribute of anything else (``for layer in layers: layer.scale``),
only the name is known, so it counts for every object that was reached. Of containers, and of objects whose code is not the user's,
everything counts.
"""

import argparse
import builtins
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import logging
import operator
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ...replicas._values import is_array, is_distributed
from ...runtime._users_code import CLOSED, HEAP_TYPE, package_of, root_of
from ...variables._known import is_variable
from ...variables._libraries import connect_libraries
from ..arguments._opaque import Held, is_object, show
from ._holders import (
    ABSENT,
    Holder,
    attributes_of,
    class_attribute,
    content_of_cell,
    is_container,
    is_fixed,
    is_memory,
    items_of,
    memory_size,
    size_of,
    slots_of,
)
from ._names_in_code import Chain, names_in
from ._running_code import is_open, open_package, telling

# Libraries whose objects are not looked into, besides those of `CLOSED`. Of loggers, only what is named counts.
_TRUSTED = (CLOSED - {"logging"}) | {
    "builtins",
    "chex",
    "equinox",
    "flax",
    "haiku",
    "inspect",
    "jaxtyping",
    "keras",
    "ml_dtypes",
    "numpy",
    "optax",
    "orbax",
}
_BY_NAME = (
    types.SimpleNamespace,
    argparse.Namespace,
    threading.local,
    logging.Logger,
)  # of the standard library; nothing there reads their attributes by itself
_READ_ANY = (vars, dir, copy.copy, copy.deepcopy, dataclasses.asdict, dataclasses.astuple, dataclasses.replace, dataclasses.fields)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, np.dtype, np.generic, range, slice, types.CodeType, Tracer)
_GETTERS = (operator.attrgetter, operator.methodcaller)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_MAX_OBJECTS = 20_000
_MAX_ITEMS = 10_000  # of one container
_MAX_BYTES = 1 << 20  # of memory that is compared at every call
_LEAF = jax.tree.structure(0)


def is_plain(value: Any) -> bool:
    """Return whether `value` contains nothing to look into."""
    return isinstance(value, _PLAIN) or is_array(value) or is_distributed(value)


def _of_module(names: dict[str, Any]) -> bool:
    """Return whether `names` are the globals of a module."""
    return getattr(sys.modules.get(str(names.get("__name__"))), "__dict__", None) is names


class Reach:
    """What a function reaches when it is called with these arguments. Arrays and structures among them do not count.

    Attributes:
        holders: What was found.
        generators: The random generators of Python and NumPy, with their labels and states.
        unseen: Why it cannot be said what the code depends on; None if it can.
    """

    def __init__(self, fn: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None):
        self.holders: dict[tuple[int, str], Holder] = {}
        self.generators: dict[int, tuple[str, Any, str]] = {}
        self.unseen: str | None = None
        self._loose: dict[str, None] = {}
        self._seen: dict[int, Any] = {}  # keeps the objects alive, so that no other object gets their ids
        self._codes: dict[Any, tuple[types.CodeType, dict[str, Any]]] = {}  # what has run, with its globals
        self._inner: set[types.CodeType] = set()  # the code inside of it
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self._searched: dict[types.CodeType, list[types.FunctionType]] = {}  # the functions that had the code when the search began
        self._without_function: dict[Any, list[Any]] = {}  # code with what its free variables hold, which keeps the ids
        self._class_names: dict[type, frozenset[str]] = {}
        self._locals: dict[Any, tuple[Any, Chain, bool]] = {}  # what local variables have held
        self._providers = [p for p in connect_libraries() if hasattr(p, "reached")]
        self._in_library = False  # whether what is visited is called by a library, so that its frames may not be seen
        for leaf in jax.tree.leaves((args, kwargs)):
            if isinstance(leaf, Held):
                self._visit(leaf.target, type(leaf.target).__name__)
        args, kwargs = show((args, kwargs))
        for value in (*args, *(kwargs or {}).values()):
            if is_object(value) or (jax.tree.structure(value) == _LEAF and not is_array(value)):
                self._visit(value, type(value).__name__)
        self._open(fn)
        self._visit(fn, "self" if not isinstance(fn, type) else fn.__name__)

    def _open(self, fn: Any) -> None:
        """Count the package of the function as the user's."""
        while isinstance(fn, functools.partial | types.MethodType):
            fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
        if isinstance(fn, types.FunctionType):
            package = package_of(fn.__code__.co_filename)
            root = str(fn.__globals__.get("__name__")).partition(".")[0]  # a wrapper of JAX has the `__module__` of what it wraps
            if package is not None and "-packages" in package and root not in _TRUSTED:
                open_package(package)

    # What runs.

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note the code that runs in this thread."""
        with telling(self._note) as works:
            if not works:
                self.unseen = "which code runs (another tool profiles this thread)"
            yield

    def _note(self, frame: types.FrameType, ended: bool) -> None:
        """Note a frame of the user's code that starts or has ended. What happens here must not reach the code."""
        try:
            if ended:
                self._note_locals(frame, names_in(frame.f_code).steady)
            else:
                self._note_start(frame)
        except Exception as error:  # noqa: BLE001 - the program is traced anew then
            self.unseen = self.unseen or f"what `{frame.f_code.co_qualname}` reads ({type(error).__name__}: {error})"

    def _note_start(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if code.co_freevars:
            self._note_cells(code, frame.f_locals)
        if not code.co_flags & inspect.CO_NEWLOCALS and not _of_module(frame.f_globals):  # `exec`, in a dictionary of its own
            self._holder("", frame.f_globals, "names").fresh = True
        self._note_code(code, frame.f_globals)
        arguments = {*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *code.co_freevars}
        self._note_locals(frame, names_in(code).steady & arguments)
        if code.co_argcount:  # of a method, the class must go on having it
            own = frame.f_locals.get(code.co_varnames[0])
            kind = own if isinstance(own, type) else type(own)
            if _of_users(kind):
                for name in {code.co_name, *_names_of_method(kind, code)}:
                    self._note_local(own, Chain("local", code.co_varnames[0], (name,)), any_name=False)

    def _note_code(self, code: types.CodeType, names: dict[str, Any]) -> None:
        key = (id(code), id(names))
        if key not in self._codes:
            self._codes[key] = code, names
            self._inner.update(_inner_codes(code))
            self._follow_globals(code, names)
            self._spread()

    def _follow_globals(self, code: types.CodeType, names: dict[str, Any]) -> None:
        found = names_in(code)
        self._loose.update(dict.fromkeys((*found.loose, *found.texts)))
        if found.reads_modules:
            self._follow_texts(found.texts | found.loose, names)
        any_name = found.reads_any or any(_reads_any(chain, names) for chain in found.chains)
        for chain in found.chains:
            if chain.kind == "global" and chain.root in names:
                holder = self._holder("", names, "names")
                holder.names[chain.root] = None
                value = names[chain.root]
                fresh = holder.before.get(chain.root) is not value
                self._along(value, chain.root, chain.attributes, fresh=fresh, any_name=any_name)
            elif chain.kind == "import" and chain.root in sys.modules:
                self._along(sys.modules[chain.root], chain.root, chain.attributes)
                self._loose.update(dict.fromkeys(chain.attributes))
            elif chain.kind == "local" and chain.root not in found.steady:
                self._loose.update(dict.fromkeys(chain.attributes))

    def _follow_texts(self, texts: frozenset[str], names: dict[str, Any]) -> None:
        """Follow what code may look up in modules by text: in its own, and in those that it names."""
        holder = self._holder("", names, "names")
        holder.names.update(dict.fromkeys(texts & names.keys()))
        self._look_into(holder)
        for text in texts:
            if text in sys.modules:
                self._visit(sys.modules[text], text)

    def _note_cells(self, code: types.CodeType, values: Mapping[str, Any]) -> None:
        """Note the free variables of a function that runs. A frame does not tell its function, but what its variables hold."""

        def fits(fn: types.FunctionType) -> bool:
            cells = zip(code.co_freevars, fn.__closure__ or (), strict=True)
            return all(content_of_cell(cell)[0] is values.get(name, ABSENT) for name, cell in cells)

        known = [fn for fn in self._functions.get(code, ()) if fits(fn)]
        if not known and code not in self._inner:  # else it is made during the trace
            known = [fn for fn in self._searched.get(code, ()) if fits(fn)]
        if not known and code not in self._inner:
            held = [values.get(name, ABSENT) for name in code.co_freevars]
            key = (id(code), *map(id, held))
            if key in self._without_function:
                return
            found = [fn for fn in gc.get_referrers(code) if isinstance(fn, types.FunctionType)]  # this looks at every object
            known = [fn for fn in found if fits(fn)]
            self._searched[code] = found
            if not known:
                self._without_function[key] = held
        for fn in known:
            self._visit_cells(fn)

    def _note_locals(self, frame: types.FrameType, wanted: frozenset[str]) -> None:
        found, values = names_in(frame.f_code), frame.f_locals
        for chain in found.chains:
            if chain.kind == "local" and chain.root in wanted and chain.root in values:
                self._note_local(values[chain.root], chain, any_name=found.reads_any)

    def _note_local(self, value: Any, chain: Chain, *, any_name: bool) -> None:
        of_python = not type(value).__flags__ & HEAP_TYPE and not isinstance(value, type)
        if of_python or is_plain(value) or isinstance(value, _MADE_BY_CODE):
            return
        key = (id(value), chain)
        if key in self._locals and self._locals[key][0]() is value:
            return
        if id(value) in self._seen:
            self._along(value, chain.root, chain.attributes, any_name=any_name)
        self._locals[key] = _weakly(value), chain, any_name

    def settle(self) -> "Reach":
        """Follow everything once more, to see what the trace has made."""
        for holder in list(self.holders.values()):
            self._look_into(holder)
        for code, names in list(self._codes.values()):
            self._follow_globals(code, names)
        for kept, chain, any_name in list(self._locals.values()):
            if (value := kept()) is not None:
                self._along(value, chain.root, chain.attributes, fresh=True, any_name=any_name)
        self._locals.clear()
        self._searched.clear()
        self._spread()
        return self

    @property
    def ran(self) -> list[types.FunctionType]:
        """The functions whose code has run."""
        codes = {code for code, _ in self._codes.values()}
        return [fn for code in codes for fn in self._functions.get(code, ())]

    # What it leads to.

    def _holder(self, label: str, target: Any, kind: str, *, fresh: bool = False) -> Holder:
        key = (id(target), kind)
        if key not in self.holders:
            self.holders[key] = Holder(label, target, kind, fresh)
        return self.holders[key]

    def _spread(self) -> None:
        """Enter what loosely named attributes lead to, until nothing new is found."""
        done = -1
        while done != (done := len(self._loose) + len(self.holders) + len(self._codes)):
            loose = self._loose.keys()
            for holder in list(self.holders.values()):
                if holder.kind == "names" and holder.label and not holder.of_library:
                    found = self._names_of_class(holder.target) | holder.content().keys()
                    new = (loose - holder.names.keys()) & found
                    holder.names.update(dict.fromkeys(new))
                    for name in new:
                        self._visit_in(holder, name)

    def _names_of_class(self, target: Any) -> frozenset[str]:
        """Return the names that an object, or a class, may get later and has from a class now."""
        kind = target if isinstance(target, type) else type(target)
        if kind not in self._class_names:
            found = {name: value for base in reversed(kind.__mro__[:-1]) for name, value in attributes_of(base).items()}
            self._class_names[kind] = frozenset(name for name, value in found.items() if not isinstance(value, property))
        return self._class_names[kind]

    def _visit_in(self, holder: Holder, key: Any, *, any_name: bool = False) -> None:
        value = holder.content().get(key, ABSENT)
        fresh = holder.fresh or holder.before.get(key, ABSENT) is not value
        self._visit(value, holder.path(key), fresh=fresh, any_name=any_name)

    def _look_into(self, holder: Holder, *, any_name: bool = False) -> None:
        """Visit what an object holds, as far as the code may read it."""
        content = holder.content()
        keys = content if holder.kind in {"items", "cell"} or holder.any_name else holder.names.keys() & content.keys()
        for key in list(keys):
            self._visit_in(holder, key, any_name=any_name)

    def _visit(self, value: Any, label: str, *, fresh: bool = False, any_name: bool = False) -> None:
        """Note an object, and enter it."""
        if is_memory(value):
            self._visit_memory(value, label)
            return
        if value is ABSENT or is_plain(value) or is_variable(value) or isinstance(value, os.PathLike):
            return
        if id(value) in self._seen:
            holder = self.holders.get((id(value), "names"))
            if any_name and holder is not None and not holder.any_name and not holder.layer:
                holder.any_name = True
                self._look_into(holder)
            return
        if len(self._seen) > _MAX_OBJECTS:
            self.unseen = self.unseen or f"`{label}`, with more than {_MAX_OBJECTS:,} objects that it leads to"
            return
        self._seen[id(value)] = value
        if isinstance(value, _GENERATORS):
            self.generators[id(value)] = label, value, drawn(value)
        elif isinstance(value, types.ModuleType):
            if _of_users(value):
                self._holder(label, value, "names", fresh=fresh)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, _CALLABLES):
            self._visit_callable(value, label, fresh=fresh)
        else:
            if is_container(value):
                self._visit_items(value, label, fresh=fresh, any_name=any_name)
            self._visit_instance(value, label, fresh=fresh, any_name=any_name)

    def _visit_memory(self, value: Any, label: str) -> None:
        if id(value) in self._seen or is_fixed(value):
            return
        self._seen[id(value)] = value
        size = memory_size(value)
        if size > _MAX_BYTES:
            self.unseen = self.unseen or f"`{label}`, {size:,} bytes that can be overwritten in place (make it an array of JAX)"
            return
        self._holder(label, value, "memory")
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            for item in value.ravel().tolist():
                self._visit(item, label)

    def _visit_items(self, value: Any, label: str, *, fresh: bool, any_name: bool) -> None:
        if isinstance(value, dict) and "__builtins__" in value:
            return
        if (size := size_of(value)) > _MAX_ITEMS:
            self.unseen = self.unseen or f"`{label}`, a {type(value).__name__} of {size:,} items"
            return
        if isinstance(value, tuple | frozenset):
            for key, item in items_of(value).items():
                self._visit(item, f"{label}[{key!r}]", fresh=fresh, any_name=any_name)
        else:
            self._look_into(self._holder(label, value, "items", fresh=fresh), any_name=any_name)

    def _visit_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if _of_users(base):
                self._seen[id(base)] = base
                self._holder(base.__name__, base, "names")
        if type(kind) is not type and _of_users(type(kind)) and id(type(kind)) not in self._seen:
            self._visit(type(kind), type(kind).__name__)

    def _visit_instance(self, value: Any, label: str, *, fresh: bool, any_name: bool) -> None:
        kind = type(value)
        if (wrapped := attributes_of(value).get("__wrapped__")) is not None:  # as jit, lru_cache and `function` have it
            self._visit(wrapped, label)
            self._enter(wrapped)
            return
        reached = next((found for p in self._providers if (found := p.reached(value)) is not None), None)
        if reached is not None:
            self._visit_layer(value, label, *reached)
            return
        users = _of_users(kind)
        if not users and (self._is_opaque(value, label) or root_of(kind) in _TRUSTED):
            return
        holder = self._holder(label, value, "names", fresh=fresh)
        holder.any_name = any_name or (not users and not issubclass(kind, _BY_NAME)) or _has_library_base(kind)
        self._visit_class(kind)
        self._look_into(holder)

    def _is_opaque(self, value: Any, label: str) -> bool:
        """Whether nothing can be said of an object of a library that is written in C."""
        kind = type(value)
        if attributes_of(value) or is_container(value) or isinstance(value, _BY_NAME):
            return False
        if class_attribute(kind, "__next__") is not None:
            self.unseen = self.unseen or f"`{label}`, an iterator, which is at another place after each step"
        elif (
            root_of(kind) not in _TRUSTED | sys.stdlib_module_names
            and class_attribute(kind, "__dict__") is None
            and not slots_of(kind)
        ):
            self.unseen = self.unseen or f"`{label}`, a {kind.__qualname__} of another library, whose state cannot be read"
        return True

    def _visit_layer(self, value: Any, label: str, names: Iterable[str], inner: Iterable[Any]) -> None:
        holder = self._holder(label, value, "names")
        holder.layer, holder.of_library = True, not _of_users(type(value))
        for provider in self._providers:
            holder.modes = holder.modes or (provider.modes(value) if hasattr(provider, "modes") else ())
        holder.names.update(dict.fromkeys(names))
        for item in inner:
            self._visit(item, f"{label}.{getattr(item, 'name', type(item).__name__)}")
        self._visit_class(type(value))

    def _visit_callable(self, fn: Any, label: str, *, fresh: bool = False) -> None:
        if isinstance(fn, functools.partial):
            for value in fn.args:
                self._visit(value, type(value).__name__, fresh=fresh)
            self._visit(fn.keywords, f"{label}.keywords", fresh=fresh)
            self._visit(fn.func, label, fresh=fresh)
        elif isinstance(fn, types.FunctionType):
            self._visit_function(fn, label, fresh=fresh)
        elif isinstance(fn, property | staticmethod | classmethod | functools.cached_property):
            for name in ("fget", "__func__", "func"):
                self._visit(getattr(fn, name, None), label)
        elif isinstance(fn, _GETTERS):
            self._loose.update(dict.fromkeys(part for name in fn.__reduce__()[1] for part in str(name).split(".")))
        else:  # a method
            self._visit(getattr(fn, "__func__", None), label, fresh=fresh)
            if not isinstance(fn.__self__, types.ModuleType):
                self._visit(fn.__self__, "self" if isinstance(fn, types.MethodType) else label, fresh=fresh)

    def _visit_function(self, fn: types.FunctionType, label: str, *, fresh: bool) -> None:
        self._visit(fn.__dict__.get("__wrapped__"), label)
        self._visit(fn.__dict__.get("registry"), f"{label}.registry")  # of `singledispatch`
        if root_of(fn) in _TRUSTED:
            return
        self._functions.setdefault(fn.__code__, []).append(fn)
        self._visit(fn.__defaults__, fn.__name__, fresh=fresh)
        self._visit(fn.__kwdefaults__, fn.__name__, fresh=fresh)
        if fn.__dict__:
            self._holder(label, fn, "names", fresh=fresh)
        if self._in_library:
            self._enter(fn)

    def _visit_cells(self, fn: types.FunctionType) -> None:
        chains = names_in(fn.__code__).chains
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            if name == "__class__":
                continue
            holder = self._holder(name, cell, "cell")
            self._visit_in(holder, "cell_contents")
            (value,) = content_of_cell(cell)
            for chain in chains:
                if chain.kind == "local" and chain.root == name and value is not ABSENT:
                    self._along(value, name, chain.attributes, fresh=holder.before.get("cell_contents") is not value)

    def _enter(self, fn: Any) -> None:
        """Count a function as one that runs, with those that it calls: a library may have kept a trace of it."""
        if not isinstance(fn, types.FunctionType) or (id(fn.__code__), id(fn.__globals__)) in self._codes or not _is_users(fn):
            return
        before, self._in_library = self._in_library, True
        self._visit_cells(fn)
        self._note_code(fn.__code__, fn.__globals__)
        self._in_library = before

    def _along(self, value: Any, label: str, attributes: tuple[str, ...], *, fresh: bool = False, any_name: bool = False) -> None:
        """Follow a chain from an object as far as the objects along it are known."""
        for i, name in enumerate(attributes):
            self._visit(value, label, fresh=fresh)
            step = self._step(value, label, name, fresh=fresh)
            if step is None:
                if not is_plain(value) and not isinstance(value, types.ModuleType):
                    self._loose.update(dict.fromkeys(attributes[i:]))
                return
            value, label, fresh = step
        self._visit(value, label, fresh=fresh, any_name=any_name)

    def _step(self, value: Any, label: str, name: str, *, fresh: bool) -> tuple[Any, str, bool] | None:
        """Return the attribute of an object with its label, and whether it is fresh; None if code of a class finds it."""
        if isinstance(value, types.ModuleType) and not _of_users(value):
            found = attributes_of(value).get(name, ABSENT)
            if root_of(value) not in _TRUSTED and root_of(value) not in sys.stdlib_module_names:
                self._holder(label, value, "names").names[name] = None
            return None if found is ABSENT else (found, f"{label}.{name}", fresh)
        holder = self.holders.get((id(value), "names"))
        if holder is None:
            return None
        holder.names[name] = None
        content = holder.content()
        if name in content:
            found = content[name]
            return found, holder.path(name), holder.fresh or holder.before.get(name, ABSENT) is not found
        if isinstance(value, types.ModuleType):
            return None
        for kind in [value, type(value)] if isinstance(value, type) else [type(value)]:
            for base in kind.__mro__:
                of_base = self.holders.get((id(base), "names"))
                if of_base is not None:
                    of_base.names[name] = None
            if (attribute := class_attribute(kind, name)) is not None:
                self._visit(attribute, holder.path(name))
                if not isinstance(attribute, _CALLABLES) and class_attribute(type(attribute), "__get__") is None:
                    return attribute, holder.path(name), False
                return None
        return None


_CALLABLES = (
    types.FunctionType, types.MethodType, types.BuiltinMethodType, types.MethodWrapperType, functools.partial, property,
    staticmethod, classmethod, functools.cached_property, *_GETTERS,
)  # fmt: skip
_MADE_BY_CODE = (types.ModuleType, *_CALLABLES)  # local variables often hold them, and none has attributes


def _reads_any(chain: Chain, names: Mapping[str, Any]) -> bool:
    """Whether a chain leads to a function that may read any attribute of what it gets."""
    value = names.get(chain.root, getattr(builtins, chain.root, None)) if chain.kind == "global" else None
    for name in chain.attributes:
        value = attributes_of(value).get(name) if isinstance(value, types.ModuleType) else None
    return any(value is each for each in _READ_ANY)


def _inner_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for inner in names_in(code).codes:
        yield inner
        yield from _inner_codes(inner)


def _is_users(fn: types.FunctionType) -> bool:
    return root_of(fn) not in _TRUSTED and is_open(fn.__code__.co_filename)


def _names_of_method(kind: type, code: types.CodeType) -> list[str]:
    """Return the names under which a class has the function with this code: it may be called another, as a lambda is."""
    found = []
    for base in kind.__mro__:
        for name, value in attributes_of(base).items():
            method = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if isinstance(method, types.FunctionType) and method.__code__ is code:
                found.append(name)
    return found


def _of_users(value: Any) -> bool:
    """Whether a class or module is the user's."""
    root = root_of(value)
    if root in _TRUSTED:
        return False
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(value.__module__)
    file = None if root == "" or module is None else attributes_of(module).get("__file__")
    if file is None:
        return root not in sys.stdlib_module_names or root == "__main__"
    return is_open(file)


def _has_library_base(kind: type) -> bool:
    """Whether code of a library may read any attribute of a user's object."""
    fine = _TRUSTED | {"abc", "typing"}
    return any(base.__flags__ & HEAP_TYPE and root_of(base) not in fine and not _of_users(base) for base in kind.__mro__)


def _weakly(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def drawn(generator: Any) -> str:
    """Return the state of a generator."""
    if isinstance(generator, np.random.Generator):
        return repr(generator.bit_generator.state)
    return repr(generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate())
