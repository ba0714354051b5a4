"""Notices what numbers that record cannot notice themselves: ``type(n)``, and an error of C code or of JAX that the code catches.

From Python 3.12 on, the interpreter tells of both. Code that does either is traced with the numbers themselves.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from ...runtime._users_code import is_users, package_of

_KNOWS_PYTHON = ("jax", "jaxlib", "numpy", "keras")  # they do the same for all numbers of one class, which JAX's traces show
# Errors that a number that records raises just as the number itself would.
_SAME_ERRORS = (LookupError, ArithmeticError, AttributeError, AssertionError, StopIteration, OSError, ImportError)
_TOOLS = (4, 3)  # the numbers that no kind of tool has by convention
_lock = threading.Lock()
_monitoring: Any = getattr(sys, "monitoring", None)
_watched = threading.local()
_in_use: dict[str, int] = {"tool": -1, "traces": 0}


@contextmanager
def watching(refuse: Callable[[], None], kinds: Any) -> Iterator[None]:
    """Call `refuse` if the code that runs in this thread asks for the type of an object of `kinds`, or catches a doubtful error."""
    if _monitoring is None:
        yield
        return
    before = getattr(_watched, "by", None)
    _watched.by = (refuse, kinds)
    try:
        _start(refuse)
        yield
    finally:
        _watched.by = before
        _stop()


def _start(refuse: Callable[[], None]) -> None:
    with _lock:
        if _in_use["traces"] == 0:
            free = [tool for tool in _TOOLS if _monitoring.get_tool(tool) is None]
            _in_use["tool"] = free[0] if free else -1
            if free:
                events = _monitoring.events
                _monitoring.use_tool_id(free[0], "replicant")
                _monitoring.register_callback(free[0], events.CALL, _on_call)
                _monitoring.register_callback(free[0], events.EXCEPTION_HANDLED, _on_handled)
                _monitoring.set_events(free[0], events.CALL | events.EXCEPTION_HANDLED)
        _in_use["traces"] += 1
        _monitoring.restart_events()
        if _in_use["tool"] < 0:  # other tools have them all
            refuse()


def _stop() -> None:
    with _lock:
        _in_use["traces"] -= 1
        if _in_use["traces"] == 0 and _in_use["tool"] >= 0:
            _monitoring.set_events(_in_use["tool"], 0)
            _monitoring.free_tool_id(_in_use["tool"])


def _on_call(code: CodeType, offset: int, called: Any, first: Any) -> Any:
    del offset
    if (called is not type and first is not type) or not _may_look(code.co_filename):
        return _monitoring.DISABLE  # at this place of the code, until the next trace
    by = getattr(_watched, "by", None)
    if by is not None and (type(first) in by[1] or first is type):  # the latter as in `map(type, numbers)`
        by[0]()
    return None


def _on_handled(code: CodeType, offset: int, error: BaseException) -> None:
    del offset
    by = getattr(_watched, "by", None)
    if by is not None and isinstance(error, Exception) and not isinstance(error, _SAME_ERRORS) and is_users(code.co_filename):
        by[0]()


@functools.cache
def _may_look(path: str) -> bool:
    """Whether code may do something else with a number of an unknown type."""
    package = package_of(path)
    return package is None or ("-packages" in package and Path(package).name not in _KNOWS_PYTHON)
