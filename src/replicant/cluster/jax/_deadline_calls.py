"""Gives a deadline to calls that have none: they run on a thread, and nobody waits for it forever."""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

_LOOK_SECONDS = 0.1  # between two looks at whether the one that is called is gone
_END_SECONDS = 5.0  # to wait at exit for calls that were given up


_Call = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]
_calls: "weakref.WeakSet[Future[Any]]" = weakref.WeakSet()


class Patience:
    """Makes calls one after the other, each with a deadline.

    As long as a call that missed its deadline still runs, the next ones fail at once, because they would wait for the same thing.

    Args:
        seconds: The time that one call may take.
        who: What is called, for the message.
        gone: Returns why no call will be answered any more, or an empty text.

    >>> patience = Patience(5.0, "the service")
    >>> patience.call(pow, 2, 10)
    1024
    """

    def __init__(self, seconds: float, who: str, gone: Callable[[], str] = str):
        self._seconds, self._who, self._gone = seconds, who, gone
        self._turn = threading.Lock()
        self._since = 0.0
        self._last: Future[Any] | None = None  # the one that was made last, as long as it may still run
        # The thread is there from the beginning: Python 3.12.1 starts none at exit, when this process has something to say.
        calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._put = calls.put
        threading.Thread(target=_make_calls, args=(calls.get,), name="replicant-calls", daemon=True).start()
        self._end = weakref.finalize(self, calls.put, None)
        self._end.atexit = False

    def close(self) -> None:
        """End the thread, after the call that may still run. There must be no more calls."""
        self._end()

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return or raise what ``fn(*args)`` returns or raises.

        Raises:
            TimeoutError: If the call takes too long. It may still finish later.
            ConnectionResetError: If the one that is called is gone. The call may still finish later.
        """
        self._check_there()
        if not self._turn.acquire(timeout=self._seconds):
            raise self._late()
        try:
            self._check_there()  # the call before this one may have learned that nobody is there
            if self._last is not None and not self._last.done():
                raise self._late()
            self._since = time.monotonic()
            self._last = call = Future[Any]()
            _calls.add(call)
            self._put((call, fn, args))
            self._wait_for(call)
            self._last = None
        finally:
            self._turn.release()
        return call.result()

    def _wait_for(self, call: Future[Any]) -> None:
        while True:
            left = self._since + self._seconds - time.monotonic()
            if wait([call], max(0.0, min(left, _LOOK_SECONDS))).done:
                return
            if left <= 0:
                raise self._late()
            self._check_there()

    def _check_there(self) -> None:
        gone = self._gone()
        if gone:
            raise ConnectionResetError(gone)

    def _late(self) -> TimeoutError:
        return TimeoutError(f"{self._who} has not answered for {time.monotonic() - self._since:.1f} s")


def _make_calls(next_call: Callable[[], _Call | None]) -> None:
    """Make calls until there is nobody left who would make more. This refers to no Patience, so that it can go."""
    while (following := next_call()) is not None:
        call, fn, args = following
        try:
            call.set_result(fn(*args))
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            call.set_exception(error)
        del following, call, fn, args  # its result may be large, and the next one may come late


@atexit.register
def _await_calls() -> None:
    """Wait for calls at exit: a thread that returns from XLA's C++ while the interpreter ends would crash the process."""
    wait(list(_calls), _END_SECONDS)
