"""Gives a deadline to calls that have none: they run on a thread, and nobody waits for it forever."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_LOOK_SECONDS = 0.1  # between two looks at whether the one that is called is gone
_END_SECONDS = 5.0  # to wait at exit for calls that were given up

_calls: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


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
        self._thread: threading.Thread | None = None

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
            if self._thread is not None and self._thread.is_alive():
                raise self._late()
            answer: list[Any] = []
            self._since = time.monotonic()
            self._thread = threading.Thread(target=_answer, args=(answer, fn, args), name="replicant-call", daemon=True)
            _calls.add(self._thread)
            self._thread.start()
            while self._thread.is_alive():
                left = self._since + self._seconds - time.monotonic()
                if left <= 0:
                    raise self._late()
                self._thread.join(min(left, _LOOK_SECONDS))
                if self._thread.is_alive():
                    self._check_there()
            self._thread = None
        finally:
            self._turn.release()
        value, error = answer
        if error is not None:
            raise error
        return value

    def _check_there(self) -> None:
        gone = self._gone()
        if gone:
            raise ConnectionResetError(gone)

    def _late(self) -> TimeoutError:
        return TimeoutError(f"{self._who} has not answered for {time.monotonic() - self._since:.1f} s")


def _answer(answer: list[Any], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    value, error = None, None
    try:
        value = fn(*args)
    except BaseException as raised:  # noqa: BLE001 - the thread that waits raises it
        error = raised
    answer.extend((value, error))


@atexit.register
def _await_calls() -> None:
    """Wait for calls at exit: a thread that returns from XLA's C++ while the interpreter ends would crash the process."""
    deadline = time.monotonic() + _END_SECONDS
    for thread in list(_calls):
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
