"""``Holder``: something whose content Python code can change. Its content is read without running any code of the user's."""

import array
import collections
import contextvars
import dataclasses
import functools
import gc
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...runtime._plain_values import PLAIN, plain_key
from ...runtime._users_code import root_of

_VIEWS = (types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()))
_SEQUENCES: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
_CACHE = type(functools.lru_cache(len))
_WITH_MEMORY = frozenset({"ctypes", "_ctypes", "mmap"})
_MEMORIES = (np.ndarray, bytearray, array.array, memoryview)


class _Absent:
    """Stands for an attribute that is not there."""

    def __repr__(self) -> str:
        return "nothing"


ABSENT: Any = _Absent()


@dataclasses.dataclass(eq=False)
class Holder:
    """An object, class, module, container or cell of a function.

    Attributes:
        label: How the code would write it.
        target: The object itself.
        kind: "names" for what is read by name, "items" for a container, "cell", or "memory" for bytes.
        fresh: Whether it was made during the trace.
        names: Those that the code reads.
        any_name: Whether it may read each.
        layer: Whether it is an object of a library, which tells what counts.
        of_library: Whether its class is the library's as well.
        modes: The names that are watched even inside a ``function``.
        before: What it held when it was found.
    """

    label: str
    target: Any
    kind: str
    fresh: bool = False
    names: dict[str, None] = dataclasses.field(default_factory=dict)
    any_name: bool = False
    layer: bool = False
    of_library: bool = False
    modes: Sequence[str] = ()
    before: dict[Any, Any] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.before = dict(self.content())

    def content(self) -> Mapping[Any, Any]:
        """Return what it holds now, by name, key or index."""
        if self.kind == "items":
            return items_of(self.target)
        if self.kind == "cell":
            return {} if (value := content_of_cell(self.target)[0]) is ABSENT else {"cell_contents": value}
        if self.kind == "memory":
            return {"content": memory_of(self.target)}
        return self.target if self._is_globals else attributes_of(self.target)

    @property
    def _is_globals(self) -> bool:
        return type(self.target) is dict and self.kind == "names"

    def changed(self) -> str | None:
        """Return what the code has changed of what it reads, as the code would write it; None if nothing."""
        for key in self._changed_keys():
            return self.path(key) if self.kind == "names" or isinstance(self.target, dict) else self.label
        return None

    def put_back(self) -> None:
        """Give the target what it held when it was found, as far as the code reads it."""
        if changed := self._changed_keys():
            self.put({key: self.before.get(key, ABSENT) for key in changed})

    def put(self, values: Mapping[Any, Any]) -> None:
        """Replace some of what the target holds, without running code of its class. ABSENT deletes."""
        if self.kind == "names":
            for name, value in values.items():
                _set_attribute(self.target, name, value)
        elif self.kind == "cell":
            self.target.cell_contents = values["cell_contents"]
        elif self.kind == "memory":
            _overwrite(self.target, values["content"])
        else:
            _refill(self.target, {key: x for key, x in {**self.content(), **values}.items() if x is not ABSENT})

    def _changed_keys(self) -> list[Any]:
        if self.of_library:
            return []
        now = self.content()
        keys = {**self.before, **now} if self.any_name or self.kind != "names" else self.names
        changed = [key for key in keys if not _is_alike(now.get(key, ABSENT), self.before.get(key, ABSENT))]
        if self.layer:  # what its class has is the library's, but for plain values
            return [key for key in changed if isinstance(now.get(key), PLAIN) and isinstance(self.before.get(key), PLAIN)]
        return changed

    def path(self, key: Any) -> str:
        """Return how the code would write one of its entries."""
        if self.kind in {"cell", "memory"}:
            return self.label
        if self.kind == "items":
            return self.label if key is None else f"{self.label}[{key!r}]"
        return f"{self.label}.{key}" if self.label else str(key)

    def getter(self) -> tuple[Callable[[Any], tuple[Any, ...]], list[Any]]:
        """Return what reads all that the code reads, and the key of each value."""
        if self.kind == "cell":
            return content_of_cell, [None]
        if self.kind == "memory":
            return memory_of, [None]
        if self.kind == "items":
            keys = list(items_of(self.target))
            return counted, [None, *keys, *keys] if isinstance(self.target, dict) else [None, *keys]
        names = [*{**self.names, **dict.fromkeys(self.content() if self.any_name else ())}]
        if self._is_globals:
            return _Names(names).of_dict, names
        if isinstance(self.target, type):
            return _Names(names).of_class, names
        return _Names(names).of_object, ["__class__", *names]


class _Names:
    """Reads attributes with these names."""

    def __init__(self, names: Sequence[str]):
        self._names = names
        self._absent = [ABSENT] * len(names)

    def of_dict(self, target: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(map(target.get, self._names, self._absent))

    def of_object(self, target: Any) -> tuple[Any, ...]:
        try:
            found = object.__getattribute__(target, "__dict__").get
        except AttributeError:  # it has slots
            found = attributes_of(target).get
        return (type(target), *map(found, self._names, self._absent))

    def of_class(self, target: type) -> tuple[Any, ...]:
        return tuple(map(_dict_of_class(target).get, self._names, self._absent))


_dict_of_class = type.__dict__["__dict__"].__get__


def attributes_of(target: Any) -> Mapping[str, Any]:
    """Return the own attributes of an object, a class or a module."""
    if isinstance(target, type):
        return _dict_of_class(target)
    of_type = threading.local if isinstance(target, threading.local) else object
    try:
        found = dict(of_type.__getattribute__(target, "__dict__"))
    except AttributeError:
        found = {}
    for kind in type(target).__mro__:
        for name in slots_of(kind):
            member = _dict_of_class(kind).get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(target)
                except AttributeError:  # nothing was assigned to it
                    continue
    return found


def slots_of(kind: type) -> tuple[str, ...]:
    """Return the slots that a class itself has."""
    slots = _dict_of_class(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(name for name in slots if name not in ("__dict__", "__weakref__"))


def content_of_cell(cell: types.CellType) -> tuple[Any]:
    """Return the value of a free variable."""
    try:
        return (cell.cell_contents,)
    except ValueError:  # a name that is not bound yet
        return (ABSENT,)


def is_container(value: Any) -> bool:
    """Whether Python's own code keeps items in `value`, whichever class it has."""
    return isinstance(value, (dict, *_SEQUENCES, *_VIEWS, contextvars.ContextVar, weakref.ref, _CACHE))


def is_memory(value: Any) -> bool:
    """Whether `value` is bytes that can be overwritten."""
    if isinstance(value, _MEMORIES):
        return True
    return root_of(type(value)) in _WITH_MEMORY and not isinstance(value, type | types.ModuleType) and _has_buffer(value)


def _has_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except (TypeError, ValueError, BufferError):
        return False
    return True


def items_of(value: Any) -> dict[Any, Any]:
    """Return the items of a container by key or index."""
    if isinstance(value, dict):
        return dict(zip(dict.keys(value), dict.values(value), strict=True))
    return dict(enumerate(entries_of(value)))


def entries_of(value: Any) -> tuple[Any, ...]:
    """Return the items of a container, and the keys before them if it has any."""
    if isinstance(value, dict):
        return (*dict.keys(value), *dict.values(value))
    for kind in _SEQUENCES:
        if isinstance(value, kind):
            return tuple(kind.__iter__(value))
    if isinstance(value, contextvars.ContextVar):
        return (value.get(ABSENT),)
    if isinstance(value, weakref.ref):
        return (weakref.ref.__call__(value),)
    if isinstance(value, _VIEWS):
        return tuple(gc.get_referents(value)[:1])  # what it is a view of
    if isinstance(value, _CACHE):
        own = object.__getattribute__(value, "__dict__")
        return tuple(x for x in gc.get_referents(value) if x is not own and not isinstance(x, type))
    return ()


def counted(value: Any) -> tuple[Any, ...]:
    """Return the number of items, and the items."""
    items = entries_of(value)
    return (len(items), *items)


def size_of(value: Any) -> int:
    """Return how many items a container has."""
    kinds: tuple[Any, ...] = (dict, *_SEQUENCES)
    for kind in kinds:
        if isinstance(value, kind):
            return kind.__len__(value)
    return len(entries_of(value))


def memory_size(value: Any) -> int:
    """Return the bytes of memory."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    with memoryview(value) as view:
        return view.nbytes


def _is_alike(now: Any, before: Any) -> bool:
    """Return whether no code that looks at values can tell two objects apart. Containers may be others with the same content."""
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    if isinstance(now, (dict, *_SEQUENCES)):
        pairs = zip(entries_of(now), entries_of(before), strict=True)
        return size_of(now) == size_of(before) and all(_is_alike(*pair) for pair in pairs)
    return isinstance(now, PLAIN) and plain_key(now) == plain_key(before)


def _set_attribute(target: Any, name: str, value: Any) -> None:
    if type(target) is dict:  # the globals of a module
        target[name] = value
        if value is ABSENT:
            del target[name]
        return
    own: Any = type if isinstance(target, type) else threading.local if isinstance(target, threading.local) else object
    if value is ABSENT:
        own.__delattr__(target, name)
    else:
        own.__setattr__(target, name, value)


def _refill(target: Any, items: Mapping[Any, Any]) -> None:
    """Give a container the items that it had."""
    if isinstance(target, dict):
        dict.clear(target)
        dict.update(target, items)
    elif isinstance(target, contextvars.ContextVar):
        target.set(items[0])
    elif isinstance(target, set):
        set.clear(target)
        set.update(target, items.values())
    elif isinstance(target, list):
        list.clear(target)
        list.extend(target, items.values())
    elif isinstance(target, collections.deque):
        collections.deque.clear(target)
        collections.deque.extend(target, items.values())


def _overwrite(target: Any, content: tuple[Any, ...]) -> None:
    """Give memory the content that it had."""
    if not isinstance(target, np.ndarray):
        with memoryview(target) as view, view.cast("B") as flat:
            flat[:] = content[0]
    elif target.dtype.hasobject:
        target[...] = np.array([*content[2:], None], object)[:-1].reshape(target.shape)  # as one item it might be taken apart
    else:
        np.copyto(target, np.frombuffer(content[2], target.dtype).reshape(target.shape))


def is_fixed(value: Any) -> bool:
    """Whether memory cannot be overwritten."""
    if isinstance(value, np.ndarray):
        return not value.flags.writeable and (value.base is None or not is_memory(value.base) or is_fixed(value.base))
    return isinstance(value, memoryview) and value.readonly


def memory_of(value: Any) -> tuple[Any, ...]:
    """Return the content of memory that can be overwritten."""
    if isinstance(value, np.ndarray):
        content = value.ravel().tolist() if value.dtype.hasobject else [value.tobytes()]
        return value.shape, value.dtype, *content
    with memoryview(value) as view:
        return (view.tobytes(),)


def class_attribute(kind: type, name: str) -> Any:
    """Return an attribute as it is in the class that has it; None if none has."""
    return next((found[name] for base in kind.__mro__ if name in (found := _dict_of_class(base))), None)
