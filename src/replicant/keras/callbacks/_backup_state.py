"""Saves and restores the states of other callbacks: the attributes that have changed since training began.

Somebody else may have written a backup. So restoring only changes attributes that a callback has, to values of the same type, and
never changes where a callback reads or writes. An attribute that a callback gets only during training (such as the epoch counter
of Keras's ModelCheckpoint) is only restored if it is a number.
"""

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...checkpoint.format._json_values import pack, unpack
from ...errors import ArgumentTypeError, CheckpointError
from ..loops._workers import is_mute

_PLAIN_TEXT = re.compile(r"[\w +-]{0,64}")  # without dots and slashes, it names no file
_PLACES = re.compile(r"path|file|dir|folder|url|uri", re.IGNORECASE)  # in the names of attributes that say where something is
_NOT_THEIRS = ("_model", "model", "params", "_params", "validation_data")


class CallbackStates:
    """The states of `callbacks`, compared with the present ones. Make it once they all know that training begins."""

    def __init__(self, callbacks: Sequence[Any]):
        self._callbacks = [callback for callback in callbacks if hasattr(callback, "__dict__")]
        self._names = _numbered([type(callback).__name__ for callback in self._callbacks])
        self._before = [_attributes(callback) for callback in self._callbacks]
        self._told: set[tuple[str, str]] = set()

    def save(self) -> list[Any]:
        """Return the name and the changed attributes of each callback, in types that ``pack`` can pack."""
        return [
            [name, self._changed(name, callback, old)]
            for name, callback, old in zip(self._names, self._callbacks, self._before, strict=True)
        ]

    def _changed(self, name: str, callback: Any, before: dict[str, Any]) -> dict[str, Any]:
        """Return the changed attributes that can be restored, and warn once of each other one."""
        changed = {}
        for attribute, value in _attributes(callback).items():
            if attribute in before and _equal(value, before[attribute]):
                continue
            problem = _problem(callback, attribute, value, before)
            if problem is None:
                changed[attribute] = value
            elif (name, attribute) not in self._told:
                self._told.add((name, attribute))
                warnings.warn(
                    f"A backup does not hold the attribute {attribute!r} of the callback {name!r}: {problem}. After an "
                    "interruption it starts again.",
                    stacklevel=2,
                )
        return changed

    def restore(self, saved: list[Any]) -> None:
        """Restore the attributes, and warn of callbacks that only one of the two fits has.

        Raises:
            CheckpointError: If the backup has an attribute that must not be restored.
        """
        known = dict(saved)
        for name, callback, before in zip(self._names, self._callbacks, self._before, strict=True):
            if is_mute(callback):  # the callback that it replaces runs on the chief
                continue
            for attribute, value in known.get(name, {}).items():
                problem = _problem(callback, attribute, value, before)
                if problem is not None:
                    raise CheckpointError(
                        f"The backup says that the attribute {attribute!r} of the callback {name!r} is {_shown(value)}, but this "
                        f"cannot be restored: {problem}. Either another program wrote the backup, or this program has changed. "
                        "Delete the backup to start again."
                    )
            vars(callback).update(known.get(name, {}))
        new, gone = [sorted(each) for each in (set(self._names) - set(known), set(known) - set(self._names))]
        if new or gone:
            warnings.warn(
                f"The callbacks of this fit are not those of the fit that it continues. New (they start again): {new}. Gone: "
                f"{gone}. The result may differ from that of an uninterrupted fit.",
                stacklevel=2,
            )


def _numbered(names: Sequence[str]) -> list[str]:
    """Number the names to make them unique: the second callback of a class gets the number 2."""
    return [f"{name} {names[:i].count(name) + 1}" for i, name in enumerate(names)]


def _attributes(callback: Any) -> dict[str, Any]:
    """Return copies of the attributes that can be saved."""
    found = {}
    for name, value in vars(callback).items():
        if name in _NOT_THEIRS:
            continue
        arrays: list[np.ndarray] = []
        try:
            packed = pack(value, arrays)
        except ArgumentTypeError:
            continue  # files, functions, models: the restarted program makes them itself
        found[name] = unpack(packed, arrays)
    return found


def _problem(callback: Any, name: str, value: Any, before: dict[str, Any]) -> str | None:
    """Return why `value` cannot be restored; None if it can. `before` holds the attributes from the beginning of training."""
    texts = list(_texts(value))
    if texts and (_PLACES.search(name) or not all(map(_PLAIN_TEXT.fullmatch, texts))):
        return "it holds text that may name a file, and only the program may choose its files"
    if name not in before:
        if texts or hasattr(type(callback), name) or not name.isidentifier():
            return "the callback does not have it when training begins (set it in __init__ or on_train_begin)"
        return None
    old = before[name]
    if value is not None and old is not None and _kind(value) != _kind(old):
        return f"it is a {_kind(old)} when training begins, but a {_kind(value)} here"
    return None


def _kind(value: Any) -> str:
    if not isinstance(value, bool) and isinstance(value, int | float | np.number | np.ndarray) and np.ndim(value) == 0:
        return "number"
    return type(value).__name__


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, except the keys of dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _equal(one: Any, other: Any) -> bool:
    mine, theirs = [], []
    return pack(one, mine) == pack(other, theirs) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(mine, theirs, strict=True)
    )
