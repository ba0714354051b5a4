"""Calls that have no deadline of their own get one: they are made on a thread that is not waited for for ever."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_END_SECONDS = 5.0  # that calls which were given up are waited for at exit

_calls: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()


class Patience:
    """Makes calls one after the other, each of which may take so long.

    While one that took longer is still under way, the next ones fail at once: they would wait for the same thing.

    Args:
        seconds: for one call.
        who: is called, for the message.

    >>> patience = Patience(5.0, "the service")
    >>> patience.call(pow, 2, 10)
    1024
    """

    def __init__(self, seconds: float, who: str):
        self._seconds, self._who = seconds, who
        self._turn = threading.Lock()
        self._since = 0.0
        self._thread: threading.Thread | None = None

    def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What ``fn(*args)`` gives or raises.

        Raises TimeoutError if it takes too long; it may come to its end all the same.
        """
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
            self._thread.join(self._seconds)
            if self._thread.is_alive():
                raise self._late()
            self._thread = None
        finally:
            self._turn.release()
        value, error = answer
        if error is not None:
            raise error
        return value

    def _late(self) -> TimeoutError:
        return TimeoutError(f"{self._who} has not answered for {time.monotonic() - self._since:.1f} s")


def _answer(answer: list[Any], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    value, error = None, None
    try:
        value = fn(*args)
    except BaseException as raised:  # noqa: BLE001 - raised by whoever waits
        error = raised
    answer.extend((value, error))


@atexit.register
def _await_calls() -> None:
    """Threads must not come back from XLA's C++ while the interpreter goes away: it would end the process with a signal."""
    deadline = time.monotonic() + _END_SECONDS
    for thread in list(_calls):
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
