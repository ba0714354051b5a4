"""Closures, which are scheduled functions with their arguments, and the functions in them, as workers get them."""

import collections
import threading
from collections.abc import Callable
from typing import Any

from ...errors import CancelledError
from ...programs._function_key import function_key
from .._remote_value import RemoteValue
from ..servers._intent import Unfinished
from ..workers import _pickling
from ..workers._arguments import Arguments
from ..workers._pickling import Packed

_MAX_FUNCTIONS = 128  # that workers keep; the least recently scheduled are forgotten


class Closure:
    """A function's name and number, what is sent of it and its arguments, and who waits for the result.

    holds: its changes become part of an update together with others'. unfinished: what a lost worker had begun to push.
    """

    def __init__(self, name: str, function: int, packed: Packed, args: Arguments, remote: RemoteValue, *, holds: bool):
        self.name = name
        self.function = function
        self.holds = holds
        self.packed = packed
        self.args = args
        self.unfinished: Unfinished | None = None
        self._remote = remote

    def end(self, value: Any, error: Exception | None) -> None:
        """Give the result to who waits for it."""
        self._remote._end(value, error)  # noqa: SLF001 - users have a RemoteValue, and are not to end it

    def cancel(self, error: Exception) -> None:
        """It will not run, because of the error of another."""
        text = f"This scheduled function did not run, because another one had failed: {type(error).__name__}: {error}"
        self.end(None, CancelledError(text))


class Functions:
    """Functions that have been scheduled, as bytes, each with a number."""

    def __init__(self) -> None:
        self._numbers: collections.OrderedDict[Any, int] = collections.OrderedDict()
        self._packed: dict[int, Packed] = {}
        self.forgotten: list[int] = []
        self._count = 0
        self._lock = threading.Lock()  # not the dispatcher's: packing runs code of the user's, which may wait for a server

    def pack(self, fn: Callable[..., Any]) -> tuple[int, Packed]:
        """The function's number, and what is sent."""
        key = function_key(fn)
        with self._lock:
            if key not in self._numbers:
                packed = _pickling.pack(fn, f"The function {name_of(fn)!r}")
                self._numbers[key], self._count = self._count, self._count + 1
                self._packed[self._numbers[key]] = packed
                if len(self._numbers) > _MAX_FUNCTIONS:
                    _, forgotten = self._numbers.popitem(last=False)
                    del self._packed[forgotten]
                    self.forgotten.append(forgotten)
            self._numbers.move_to_end(key)
            return self._numbers[key], self._packed[self._numbers[key]]


def name_of(fn: Callable[..., Any]) -> str:
    """How a function is called in messages."""
    return str(getattr(fn, "__qualname__", fn))
