"""What other callbacks remember: those of their attributes that have changed since training began."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...checkpoint._packed import pack, unpack
from ...errors import ArgumentTypeError

_NOT_THEIRS = ("_model", "model", "params", "_params", "validation_data")


class CallbackStates:
    """The states of `callbacks`, compared with what they are now: after they were told that training begins."""

    def __init__(self, callbacks: Sequence[Any]):
        self._callbacks = [callback for callback in callbacks if hasattr(callback, "__dict__")]
        self._names = _numbered([type(callback).__name__ for callback in self._callbacks])
        self._before = [_attributes(callback) for callback in self._callbacks]

    def save(self) -> list[Any]:
        """Class and changed attributes of each, in what ``pack`` can pack."""
        return [
            [name, {k: v for k, v in _attributes(callback).items() if k not in old or not _equal(v, old[k])}]
            for name, callback, old in zip(self._names, self._callbacks, self._before, strict=True)
        ]

    def restore(self, saved: list[Any]) -> None:
        """Give the attributes back. Callbacks that only one of the two fits has are told."""
        known = dict(saved)
        for name, callback in zip(self._names, self._callbacks, strict=True):
            vars(callback).update(known.get(name, {}))
        new, gone = [sorted(each) for each in (set(self._names) - set(known), set(known) - set(self._names))]
        if new or gone:
            warnings.warn(
                f"The callbacks of this fit are not those of the one that it continues: new are {new}, which begin anew; gone are "
                f"{gone}. With other callbacks the result may be another one.",
                stacklevel=2,
            )


def _numbered(names: Sequence[str]) -> list[str]:
    """Names that differ: the second one of a class is its second one."""
    return [f"{name} {names[:i].count(name) + 1}" for i, name in enumerate(names)]


def _attributes(callback: Any) -> dict[str, Any]:
    """The attributes that can be saved, copied."""
    found = {}
    for name, value in vars(callback).items():
        if name in _NOT_THEIRS:
            continue
        arrays: list[np.ndarray] = []
        try:
            packed = pack(value, arrays)
        except ArgumentTypeError:
            continue  # files, functions, models: what they are for is made anew
        found[name] = unpack(packed, arrays)
    return found


def _equal(one: Any, other: Any) -> bool:
    mine, theirs = [], []
    return pack(one, mine) == pack(other, theirs) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(mine, theirs, strict=True)
    )
