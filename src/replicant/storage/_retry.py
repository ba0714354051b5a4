"""Requests that are repeated: with growing pauses, a largest number of attempts, a limit for each and a deadline for all."""

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import ConfigurationError
from ._counts import Counts

_Result = TypeVar("_Result")

DEADLINE = "REPLICANT_REMOTE_DEADLINE"
_SECONDS = 120.0
# Of the deadline, for the first attempt, and at most for one. A stall is soon over, and a slow connection gets more and more time.
_FIRST_SHARE, _LARGEST_SHARE = 1 / 16, 1 / 4
_ATTEMPTS = 12
_SLOWEST = 1e7  # bytes per second: what is sent has so much more time. A stalled server is not waited for much longer
_CHECK_SECONDS = 1.0  # how often one who waits makes sure that the thread is alive
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0  # seconds

# Another attempt would end in the same way.
_DEFINITE = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    ImportError,
    NotImplementedError,
    TypeError,
)
_DEFINITE_NAMES = {"NoCredentialsError", "PartialCredentialsError"}  # of libraries that may not be installed


class RemoteError(OSError):
    """A request to an object store has failed for good. The message names the URL, the attempts and the last cause."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.strerror = text


class ChangedError(RemoteError):
    """An object is not the one any more that it was."""


def deadline_seconds() -> float:
    """Return the deadline of one request with all of its attempts.

    Raises:
        ConfigurationError: If the environment variable is not a number of seconds above 0.
    """
    text = os.environ.get(DEADLINE, "").strip()
    try:
        seconds = float(text) if text else _SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigurationError(f"{DEADLINE}={text!r} is not a number of seconds above 0. Set it to 120, say, or not at all.")
    return seconds


def retried(
    what: str,
    url: str,
    once: Callable[[float], _Result],
    unwanted: threading.Event | None = None,
    num_bytes: int = 0,
    *,
    counts: Counts | None = None,
) -> _Result:
    """Return what ``once(seconds)`` returns. It is called again after errors that may pass, with less and less time left.

    If ``num_bytes`` are sent, each attempt and all of them together have more time. Once the result is ``unwanted``, there are no
    more attempts. ``counts`` counts those after the first.

    Raises:
        RemoteError: If no attempt succeeds, or none can.
    """
    sending = num_bytes / _SLOWEST
    seconds = deadline_seconds() + sending
    start = time.monotonic()
    attempts, pause, share = 0, _FIRST_PAUSE, _FIRST_SHARE
    unwanted = unwanted or threading.Event()
    while True:
        attempts += 1
        left = start + seconds - time.monotonic()
        try:
            return once(max(0.01, min(left, seconds * share + sending)))
        except (RemoteError, ConfigurationError):
            raise
        except Exception as error:
            wait = pause * random.uniform(0.5, 1)  # noqa: S311 - so that many workers do not come back at once
            passed = time.monotonic() - start
            definite = isinstance(error, _DEFINITE) or type(error).__name__ in _DEFINITE_NAMES
            if definite or attempts == _ATTEMPTS or passed + wait >= seconds or unwanted.wait(wait):
                raise _failure(what, url, attempts, passed, error) from error
        if counts is not None:
            counts.add("retries")
        pause, share = min(2 * pause, _LONGEST_PAUSE), min(2 * share, _LARGEST_SHARE)


def _failure(what: str, url: str, attempts: int, passed: float, error: Exception) -> RemoteError:
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    times = "" if attempts == 1 else f" after {attempts} attempts in {passed:.1f} s, the last of which ended with"
    return RemoteError(f"could not {what} {url}{times or ':'} {cause}")


def limited(call: Callable[[], _Result], seconds: float) -> _Result:
    """Return what ``call()`` returns, on a thread of its own which is left behind if it takes too long.

    Raises:
        TimeoutError: If it takes longer.
        Exception: What ``call`` raises.
    """
    started = Started(call)
    if not started.done.wait(seconds):
        raise TimeoutError(f"no answer within {seconds:.1f} s")
    return started.result()


class Started:
    """A call that runs on a thread of its own, which never keeps the program from ending."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), name="replicant-storage", daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self._value = call()
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._error = error
        finally:
            self.done.set()

    @property
    def has_failed(self) -> bool:
        """Whether the call has ended with an error."""
        return self._error is not None

    def wait(self) -> None:
        """Wait until the call has ended, or its thread is gone, as in a forked process. The call itself must have a limit."""
        while not self.done.wait(_CHECK_SECONDS) and self._thread.is_alive():
            pass

    def result(self, unwanted: threading.Event | None = None) -> Any:
        """Wait for the call, and return its result or raise its error. The call itself must have a limit.

        Soon after the result is ``unwanted``, the waiting ends with an error.
        """
        while not self.done.wait(_CHECK_SECONDS):
            if unwanted is not None and unwanted.is_set():
                raise RemoteError("nobody waits for the bytes any more")
            if not self._thread.is_alive() and not self.done.is_set():
                raise RemoteError("the thread that reads is gone, as in a forked process; make the iterator after the fork")
        if self._error is not None:
            raise self._error
        return self._value
