"""Watches what a trace has read and Python code can change later. A program is valid while all of that is unchanged.

Outside a function, ``strategy.run`` watches what the code that ran has read. So it computes what the code would compute now, as
tf.distribute's eager ``run`` does. Inside a ``function``, only `trainable` is watched, as in tf.function.
"""

import dataclasses
import operator
import types
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ...runtime._plain_values import PLAIN, plain_key
from ...variables._libraries import connect_libraries
from ...variables._ref import Ref
from ._dependencies import Reach
from ._holders import Holder

_UNREADABLE = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)  # something was deleted, or changes right now


class Watch:
    """Values, and how to read them again."""

    def __init__(self) -> None:
        self.unseen: str | None = None  # what cannot be watched, so that the program is valid only once
        self.changes: str | None = None  # what the code itself changes, so that the next call has to find it changed
        self._reads: list[tuple[Callable[[Any], tuple[Any, ...]], Any]] = []
        self._values: list[Any] = []  # all values, in the order of `_reads`
        self._labels: list[tuple[int, Callable[[int], str]]] = []  # for each read, the number of values and their names

    def add(self, getter: Callable[[Any], tuple[Any, ...]], target: Any, label: Callable[[int], str]) -> None:
        """Watch the values of ``getter(target)``. ``label(i)`` returns the name of the i-th one."""
        values = getter(target)
        self._reads.append((getter, target))
        self._values += values
        self._labels.append((len(values), label))

    @property
    def is_spent(self) -> bool:
        """Whether the program is valid only for the call that it was made for."""
        return self.unseen is not None or self.changes is not None

    def holds(self) -> bool:
        """Return whether nothing has changed. Every call asks this, and nearly always finds the same objects."""
        if self.is_spent:
            return False
        try:
            now = [getter(target) for getter, target in self._reads]
        except _UNREADABLE:
            return False
        if all(map(operator.is_, chain.from_iterable(now), self._values)):
            return True
        flat = list(chain.from_iterable(now))
        if len(flat) == len(self._values) and all(map(_same, flat, self._values)):
            self._values = flat  # so that the next call finds the same objects
            return True
        return False

    def changed(self) -> str:
        """Return the first thing that has changed, as the code would write it."""
        start = 0
        for (getter, target), (count, label) in zip(self._reads, self._labels, strict=True):
            then, start = self._values[start : start + count], start + count
            try:
                now = getter(target)
            except _UNREADABLE:
                return label(0)
            if len(now) != count:
                return label(0)
            for i, pair in enumerate(zip(now, then, strict=True)):
                if not _same(*pair):
                    return label(i)
        return "something"


def _same(now: Any, then: Any) -> bool:
    """Return whether two values lead to the same program. Plain values compare by type and bits, objects by identity."""
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if isinstance(now, tuple):
        return len(now) == len(then) and all(map(_same, now, then))
    if isinstance(now, np.generic):
        return now.dtype == then.dtype and now.tobytes() == then.tobytes()
    if isinstance(now, range | slice):
        return repr(now) == repr(then)
    return isinstance(now, PLAIN) and plain_key(now) == plain_key(then)


def watch_trainable(watch: Watch, refs: Iterable[Ref]) -> None:
    """Watch whether the variables of a program are trainable."""
    by_attribute: dict[str, list[tuple[Any, Ref]]] = {}
    for ref in refs:
        if not ref.slot and not ref.on_read:
            holder, attribute = ref.switch()
            by_attribute.setdefault(attribute, []).append((holder, ref))
    for attribute, pairs in by_attribute.items():
        read = operator.attrgetter(attribute)
        names = [f"{ref.name}.trainable" for _, ref in pairs]
        watch.add(partial(_map, read), [holder for holder, _ in pairs], names.__getitem__)


def follow_libraries(watch: Watch, refs: Iterable[Ref]) -> None:
    """Let libraries bring variables of a program up to date whenever it is asked whether the program is valid."""
    known = set(refs)
    for provider in connect_libraries():
        follow = provider.following(known) if hasattr(provider, "following") else None
        if follow is not None:
            watch.add(_call, follow, str)  # there is nothing to compare, and so nothing to name


def _map(read: Callable[[Any], Any], holders: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(read, holders))


def watch_layers(watch: Watch, reach: Reach) -> None:
    """Watch whether the layers that a function uses are trainable: some layers compute something else if they are not."""
    layers = [holder for holder in reach.holders.values() if holder.layer and "_trainable" in holder.names]
    if layers:
        read = partial(_map, operator.attrgetter("_trainable"))
        watch.add(read, [holder.target for holder in layers], lambda i: f"{layers[i].label}.trainable")
    for holder in reach.holders.values():
        if holder.modes:
            _watch_holder(watch, dataclasses.replace(holder, names=dict.fromkeys(holder.modes), any_name=False))


def watch_code(watch: Watch, reach: Reach) -> None:
    """Watch what the code of a function has read, and the settings of the libraries in use."""
    watch.unseen = reach.unseen
    for holder in reach.holders.values():
        _watch_holder(watch, holder)
    functions = reach.ran
    if functions:
        watch.add(_codes_of, functions, lambda i: functions[i // 3].__qualname__)
    for provider in connect_libraries():
        if hasattr(provider, "settings"):
            names, read = provider.settings()
            watch.add(_call, read, names.__getitem__)


_code_of = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")


def _codes_of(functions: list[types.FunctionType]) -> tuple[Any, ...]:
    return tuple(chain.from_iterable(map(_code_of, functions)))


def _call(read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    return read()


def _watch_holder(watch: Watch, holder: Holder) -> None:
    getter, keys = holder.getter()
    if keys:
        watch.add(getter, holder.target, lambda i: holder.path(keys[i] if i < len(keys) else None))
