"""Requests that are made while the program ends, because it still waits for a write in the background.

Before Python waits for its threads, it ends all executors. The event loop of fsspec needs one to look up the names of hosts, so
without another one it could reach hosts only by their addresses from then on.
"""

import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ._retry import Started

if TYPE_CHECKING:
    import asyncio

_Result = TypeVar("_Result")
_loops: "weakref.WeakSet[asyncio.AbstractEventLoop]" = weakref.WeakSet()


class LastingExecutor(ThreadPoolExecutor):
    """An executor that takes calls also while the program ends, each of which then gets a thread of its own."""

    def submit(self, fn: Callable[..., _Result], /, *args: Any, **kwargs: Any) -> "Future[_Result]":
        """Begin the call, and return its future."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            future: Future[_Result] = Future()
            Started(partial(_run, future, partial(fn, *args, **kwargs)))
            return future


def _run(future: "Future[_Result]", call: Callable[[], _Result]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
        future.set_exception(error)
    else:
        future.set_result(result)


def let_outlast(loop: "asyncio.AbstractEventLoop") -> None:
    """Let an event loop look up names also while the program ends."""
    if loop not in _loops:
        _loops.add(loop)
        loop.set_default_executor(LastingExecutor(thread_name_prefix="asyncio"))
