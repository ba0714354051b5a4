"""Tells which Python code runs, in one thread, while something is traced."""

import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, TypeAlias

from ...runtime._users_code import package_of

Listener: TypeAlias = Callable[[FrameType, bool], None]

_monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
_TOOLS = (3, 4)  # those without a name of their own: debuggers have 0, coverage 1, profilers 2, optimizers 5
_lock = threading.Lock()
_listeners: dict[int, list[Listener]] = {}  # by thread
_tool: list[int] = []  # ours while it watches, once for each that asks


def _tell(frame: FrameType, *, ended: bool) -> None:
    for listener in _listeners.get(threading.get_ident(), ()):
        listener(frame, ended)


def _is_open(frame: FrameType) -> bool:
    """Whether the code of a frame counts as the user's. Code without a file, as `dataclass` writes it, is that of its module."""
    if frame.f_code.co_filename != "<string>":
        return is_open(frame.f_code.co_filename)
    names = frame.f_globals
    return is_open(str(names.get("__file__") or "")) and not str(names.get("__name__")).startswith("namedtuple_")


def _on_start(code: CodeType, offset: int) -> Any:
    del code, offset
    frame = sys._getframe(1)  # noqa: SLF001 - Python has no other name for it
    if not _is_open(frame):
        return _monitoring.DISABLE
    if threading.get_ident() in _listeners:
        _tell(frame, ended=False)
    return None


def _on_return(code: CodeType, offset: int, result: Any) -> Any:
    del code, offset, result
    frame = sys._getframe(1)  # noqa: SLF001 - Python has no other name for it
    if not _is_open(frame):
        return _monitoring.DISABLE
    if threading.get_ident() in _listeners:
        _tell(frame, ended=True)
    return None


def is_open(path: str) -> bool:
    """Whether the code of a Python file counts as the user's."""
    package = package_of(path)
    return package is None or package in _open


_open: set[str] = set()  # installed packages whose functions have been given to ``run`` or ``function``: the user's after all


def open_package(package: str) -> None:
    """Count the code of an installed package as the user's from now on."""
    if package not in _open:
        _open.add(package)
        if _monitoring is not None:
            _monitoring.restart_events()


@contextmanager
def telling(listener: Listener) -> Iterator[bool]:
    """Call `listener(frame, has_ended)` for the user's code that runs in this thread. Yields whether that is possible."""
    mine = _listeners.setdefault(threading.get_ident(), [])
    mine.append(listener)
    try:
        with _profiling() if _monitoring is None else _tool_in_use() as works:
            yield works
    finally:
        mine.remove(listener)
        if not mine:
            _listeners.pop(threading.get_ident(), None)


@contextmanager
def _tool_in_use() -> Iterator[bool]:
    with _lock:
        free = _tool[:1] or [i for i in _TOOLS if _monitoring.get_tool(i) is None][:1]
        if free and not _tool:
            _start_tool(free[0])
        _tool.extend(free)
    if not free:
        with _profiling() as works:
            yield works
        return
    try:
        yield True
    finally:
        with _lock:
            tool = _tool.pop()
            if not _tool:
                _monitoring.set_events(tool, 0)
                _monitoring.free_tool_id(tool)


def _start_tool(tool: int) -> None:
    events = _monitoring.events
    _monitoring.use_tool_id(tool, "replicant")
    for event, callback in ((events.PY_START, _on_start), (events.PY_RESUME, _on_start), (events.PY_RETURN, _on_return)):
        _monitoring.register_callback(tool, event, callback)
    _monitoring.set_events(tool, events.PY_START | events.PY_RESUME | events.PY_RETURN)


@contextmanager
def _profiling() -> Iterator[bool]:
    """Watch with the thread's profile function, and go on calling the one that was there."""
    before: Any = sys.getprofile()
    if isinstance(before, types.FunctionType) and before.__module__ == __name__:
        yield True
        return
    if before is not None and not callable(before):  # one that is written in C, which cannot be put back
        yield False
        return

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "return") and _is_open(frame):
            _tell(frame, ended=event == "return")
        if before is not None:
            before(frame, event, arg)

    sys.setprofile(profile)
    try:
        yield True
    finally:
        sys.setprofile(before)
