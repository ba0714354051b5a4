"""Fingerprints: digests of values and functions. Equal ones have the same digest in every process.

The fingerprint of a function covers its code, its defaults, what it captures, and the globals that it names. Other functions of
the user and methods of the user's classes count in the same way, those of installed packages by name. Nothing that contains an
address or a time is looked at.
"""

import dataclasses
import enum
import functools
import hashlib
import operator
import os
import random
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ...runtime._users_code import CLOSED, is_of_users

_WHOLE = 256 << 20  # bytes; of larger arrays, only rows spread over all of the array are read
_SPREAD_ROWS = 4096
_DEEPEST = 12
_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice, np.dtype)


def of_value(value: Any) -> str:
    """Return the fingerprint of any value, in hexadecimal.

    >>> of_value([1, 2]) == of_value([1, 2]), of_value(lambda x: x + 1) == of_value(lambda x: x + 2)
    (True, False)
    """
    return Fingerprint().add(value).hexdigest()


def of_random_states(value: Any) -> str | None:
    """Return the fingerprint of all random generators that a function can see (global ones if it names them), None if none."""
    found = RandomStates()
    found.add(value)
    return found.hexdigest() if found.seen_any else None


class Fingerprint:
    """A fingerprint that grows by one value after the other."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._seen: dict[int, tuple[int, Any]] = {}  # keeps them alive, so that no other value gets their address

    def hexdigest(self) -> str:
        """Return the fingerprint of all that was added."""
        return self._hash.hexdigest()

    def say(self, *words: object) -> None:
        """Add these words as they print."""
        self._hash.update("".join(f"{len(text)}:{text}" for text in map(str, words)).encode("utf-8", "surrogateescape"))

    def add(self, value: Any, depth: int = 0) -> "Fingerprint":
        """Add a value."""
        if isinstance(value, (*_PLAIN, enum.Enum)):
            self.plain(value)
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self.array(value)
        elif id(value) in self._seen:
            self.say("seen", self._seen[id(value)][0])
        elif depth > _DEEPEST:
            self.say("deep", type(value).__qualname__)
        else:
            self._seen[id(value)] = (len(self._seen), value)
            self._add_new(value, depth + 1)
        return self

    def plain(self, value: Any) -> None:
        """Add a value that its repr describes completely."""
        self.say(type(value).__name__, repr(value))

    def array(self, value: Any) -> None:
        """Add an array."""
        self.say("array", *of_array(np.asarray(value)))

    def random_state(self, state: Any, depth: int) -> None:
        """Add the state of a random generator."""
        self.add(state, depth)

    def _add_new(self, value: Any, depth: int) -> None:
        if (state := _random_state(value)) is not None:
            self.say(type(value).__qualname__)
            self.random_state(state, depth)
        elif isinstance(value, Mapping):
            self.say(type(value).__qualname__, len(value))
            for key, item in value.items():
                self.add(key, depth).add(item, depth)
        elif isinstance(value, list | tuple):
            self.say(type(value).__qualname__, len(value))
            for item in value:
                self.add(item, depth)
        elif isinstance(value, set | frozenset):
            self.say("set", *sorted(of_value(item) for item in value))
        elif isinstance(value, functools.partial):
            self.say("partial")
            self.add(value.func, depth).add(value.args, depth).add(value.keywords, depth)
        elif isinstance(value, types.FunctionType):
            self._function(value, depth)
        elif isinstance(value, types.MethodType):
            self.add(value.__func__, depth).add(value.__self__, depth)
        else:
            self._object(value, depth)

    def _function(self, fn: types.FunctionType, depth: int) -> None:
        self.say("function", fn.__qualname__)
        if not is_of_users(fn):
            self.say(fn.__module__)
        else:
            self.code(fn.__code__, depth)
            for name in sorted(_names(fn.__code__)):
                if name in fn.__globals__:
                    self.say(name)
                    self.add(fn.__globals__[name], depth)
        self.add(fn.__defaults__, depth).add(fn.__kwdefaults__, depth)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            self.say(name)
            self.add(_content(cell), depth)

    def code(self, code: types.CodeType, depth: int) -> None:
        """Add what a function does; its place in the file does not matter."""
        self.say(
            "code", code.co_code.hex(), code.co_names, code.co_freevars, code.co_argcount, code.co_kwonlyargcount, code.co_flags
        )
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self.code(constant, depth)
            else:
                self.add(constant, depth)

    def _object(self, value: Any, depth: int) -> None:
        kind = value if isinstance(value, type) else type(value)
        module = kind.__module__
        self.say("object", module, kind.__qualname__, getattr(value, "__name__", ""))
        if isinstance(value, type | types.ModuleType | np.ufunc):
            return
        if not isinstance(owner := getattr(value, "__self__", None), types.ModuleType | None):  # a method of a built-in class
            self.add(owner, depth)
        elif isinstance(value, os.PathLike):
            self.plain(os.fspath(value))
        elif (inner := getattr(value, "__wrapped__", None)) is not None:  # as jit and lru_cache have it
            self.add(inner, depth)
        elif module.partition(".")[0] in CLOSED:
            return
        elif callable(getattr(kind, "__array__", None)):  # for example a pandas table or a Keras variable
            self.array(np.asarray(value))
        else:
            if is_of_users(kind):
                self._items(_methods(kind), depth)
            if _is_layer(value):
                self._layer(value, depth)
            else:
                self._items(_attributes(value), depth)

    def _items(self, items: Iterator[tuple[str, Any]], depth: int) -> None:
        for name, item in sorted(items, key=operator.itemgetter(0)):
            self.say(name)
            self.add(item, depth)

    def _layer(self, layer: Any, depth: int) -> None:
        """Add the weights and settings of a Keras layer, except counted names and drawn seeds."""
        config = layer.get_config()
        self.add({key: item for key, item in config.items() if key not in ("name", "seed", "dtype")}, depth)
        for weight in getattr(layer, "variables", ()):
            if "seed" not in getattr(weight, "name", ""):
                self.array(weight)


class RandomStates(Fingerprint):
    """Visits the same values, but adds only the states of random generators."""

    seen_any = False

    def say(self, *words: object) -> None:
        return

    def plain(self, value: Any) -> None:
        return

    def array(self, value: Any) -> None:
        return

    def random_state(self, state: Any, depth: int) -> None:
        self.seen_any = True
        self._hash.update(of_value(state).encode())

    def code(self, code: types.CodeType, depth: int) -> None:
        return

    def _function(self, fn: types.FunctionType, depth: int) -> None:
        super()._function(fn, depth)
        named = {name: fn.__globals__.get(name) for name in _names(fn.__code__)}
        if "random" in named and any(value is np for value in named.values()):
            self.random_state(np.random.get_state(), depth)  # noqa: NPY002 - the state, not a number
        if any(value is random for value in named.values()):
            self.random_state(random.getstate(), depth)


def of_array(array: np.ndarray) -> tuple[str, tuple[int, ...], str]:
    """Return dtype, shape and digest of an array; beyond 256 MiB, the digest covers 4,096 rows spread over all of it."""
    digest = hashlib.blake2b(digest_size=16)
    if array.nbytes > _WHOLE and len(array) > _SPREAD_ROWS:
        array_rows = array[np.linspace(0, len(array) - 1, _SPREAD_ROWS).astype(np.int64)]
    else:
        array_rows = array
    if array.dtype.hasobject:
        inner = Fingerprint()
        for item in array_rows.ravel().tolist():
            inner.add(item)
        digest.update(inner.hexdigest().encode())
    else:
        digest.update(np.ascontiguousarray(array_rows).reshape(-1).view(np.uint8).data)
    return str(array.dtype), array.shape, digest.hexdigest()


def _random_state(value: Any) -> Any:
    """The state of a random generator, None for anything else."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, np.random.BitGenerator):
        return value.state
    return value.getstate() if isinstance(value, random.Random) and type(value) is not random.SystemRandom else None


def _names(code: types.CodeType) -> set[str]:
    """All names of globals and attributes in a function and in the functions that it defines."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    return ((name, item) for name, item in vars(kind).items() if isinstance(item, types.FunctionType))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        return ((each.name, getattr(value, each.name, None)) for each in dataclasses.fields(value))
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    return iter([*getattr(value, "__dict__", {}).items(), *((name, getattr(value, name, None)) for name in slots)])


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(name for name in slots if name not in ("__dict__", "__weakref__"))


def _is_layer(value: Any) -> bool:
    """Whether it is a Keras layer, recognized by class name, so that Keras is not imported here."""
    return any(base.__module__.partition(".")[0] == "keras" and base.__name__ == "Layer" for base in type(value).__mro__)
