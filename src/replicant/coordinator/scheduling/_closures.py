"""Closures, and the functions in them as they are sent to workers."""

import collections
import threading
from collections.abc import Callable
from typing import Any

from ...errors import CancelledError
from ...programs.validity._function_key import function_key
from .._remote_value import RemoteValue
from ..servers._intent import Unfinished
from ..workers import _pickling
from ..workers._arguments import Arguments
from ..workers._pickling import Packed

_MAX_FUNCTIONS = 128  # kept by workers; the least recently scheduled ones are forgotten


class Closure:
    """A scheduled function with its arguments.

    Args:
        function: the function's number.
        packed: the function, as it is sent.
        remote: receives the result.
        holds: whether its changes are combined with those of other closures into one update.

    Attributes:
        unfinished: the push that a lost worker had started, if any.
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
        """Set the result."""
        self._remote._end(value, error)  # noqa: SLF001 - users have the RemoteValue, and must not end it

    def cancel(self, error: Exception) -> None:
        """End it without running it, because another closure failed with `error`."""
        text = f"This closure did not run, because another one had failed: {type(error).__name__}: {error}"
        self.end(None, CancelledError(text))


class Functions:
    """The functions that have been scheduled, as bytes, each with a number."""

    def __init__(self) -> None:
        self._numbers: collections.OrderedDict[Any, int] = collections.OrderedDict()
        self._packed: dict[int, Packed] = {}
        self.forgotten: list[int] = []
        self._count = 0
        self._lock = threading.Lock()  # not the dispatcher's: packing runs user code, which may wait for a server

    def pack(self, fn: Callable[..., Any]) -> tuple[int, Packed]:
        """The function's number, and the function as it is sent."""
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
    """A function's name for messages."""
    return str(getattr(fn, "__qualname__", fn))
