"""Remembers what the last result of a kind was computed from, so that what follows can be computed together with it."""

import threading
import weakref
from collections.abc import Callable
from typing import Any


class Last(threading.local):
    """The last result in this thread, while it exists, and what it was computed from.

    Results are told by their identity. In a trace, they are tracers, which must not outlive it: nothing else holds on to them.
    """

    _result: Callable[[], Any] | None = None
    _operands: tuple[Any, ...] | None = None

    def keep(self, result: Any, operands: tuple[Any, ...]) -> None:
        """Keep what a result was computed from, until it is asked for, the result is gone, or another one comes."""
        self._result, self._operands = weakref.ref(result, self._forget), operands

    def operands_of(self, result: Any) -> tuple[Any, ...] | None:
        """What was kept for a result, or None. Nothing is kept of it any more."""
        if self._result is None or self._result() is not result:
            return None
        found, self._result, self._operands = self._operands, None, None
        return found

    def _forget(self, gone: Any) -> None:
        if self._result is gone:
            self._result = self._operands = None
