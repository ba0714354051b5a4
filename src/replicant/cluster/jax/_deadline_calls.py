"""Gives a deadline to calls that have none: they run on a thread, and nobody waits for it forever."""

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_LOOK_SECONDS = 0.1  # between two looks at whether the one that is called is gone
_END_SECONDS = 5.0  # to wait at exit for calls that were given up


class _Call:
    """One call, and what came of it."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]):
        self._fn, self._args = fn, args
        self.is_over = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def make(self) -> None:
        """Make the call, on the thread for calls."""
        try:
            self.value = self._fn(*self._args)
        except BaseException as error:  # noqa: BLE001 - the thread that waits raises it
            self.error = error
        self.is_over.set()


_calls: "weakref.WeakSet[_Call]" = weakref.WeakSet()


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
        self._last: _Call | None = None  # the one that was made last, as long as it may still run
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
            if self._last is not None and not self._last.is_over.is_set():
                raise self._late()
            self._since = time.monotonic()
            self._last = call = _Call(fn, args)
            _calls.add(call)
            self._put(call)
            self._wait_for(call)
            self._last = None
        finally:
            self._turn.release()
        if call.error is not None:
            raise call.error
        return call.value

    def _wait_for(self, call: _Call) -> None:
        while True:
            left = self._since + self._seconds - time.monotonic()
            if call.is_over.wait(max(0.0, min(left, _LOOK_SECONDS))):
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
    while (call := next_call()) is not None:
        call.make()
        del call  # its result may be large, and the next one may come late


@atexit.register
def _await_calls() -> None:
    """Wait for calls at exit: a thread that returns from XLA's C++ while the interpreter ends would crash the process."""
    deadline = time.monotonic() + _END_SECONDS
    for call in list(_calls):
        call.is_over.wait(max(0.0, deadline - time.monotonic()))
