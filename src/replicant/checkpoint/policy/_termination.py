"""Requests to leave: by SIGTERM, a file, a web address or a function of yours. A grace period follows, then the end."""

import atexit
import contextlib
import dataclasses
import os
import signal
import sys
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ...cluster.jax import _bootstrap
from ...errors import ArgumentError, ContextError

_SECONDS_PER_REQUEST = 2.0
_NO = ("", "FALSE", "NONE")  # what clouds answer if nothing is planned


@dataclasses.dataclass(frozen=True)
class TerminationConfig:
    """How a program learns that it has to leave, and how it leaves.

    Args:
        termination_watcher_fn: What to check, in addition to SIGTERM, every `poll_interval` seconds: a function that returns
            whether to leave; a path, whose existence means yes; or an ``http://`` address, which means yes unless it answers with
            an error, nothing, ``FALSE`` or ``NONE``, as the metadata servers of clouds do.
        exit_fn: A function to call once everything is saved, instead of exiting with `exit_code`.
        exit_code: The exit code. 143 is that of a program ended by SIGTERM; Kubernetes, Slurm and others start such a program
            again.
        grace_period: The seconds from the request to the end. What is not saved by then is lost; the checkpoint before it is
            complete.
        poll_interval: The seconds between two checks.

    This is the counterpart of tf.distribute.experimental.TerminationConfig. There, `grace_period` is time for more training; here
    it is the time that saving may take, and saving begins after the current step.

    Raises:
        ArgumentError: If a time is not positive.
    """

    termination_watcher_fn: Callable[[], bool] | str | os.PathLike[str] | None = None
    exit_fn: Callable[[], Any] | None = None
    exit_code: int = 143
    grace_period: float = 30.0
    poll_interval: float = 1.0

    def __post_init__(self) -> None:
        for name in ("grace_period", "poll_interval"):
            if not getattr(self, name) > 0:
                raise ArgumentError(
                    f"TerminationConfig: {name} must be a positive number of seconds. Received: {getattr(self, name)}."
                )


class Termination:
    """Watches, from ``start`` to ``stop``, for a request to leave.

    The first SIGTERM is a request. A second one ends the program at once, and Ctrl-C works as usual.
    """

    def __init__(self, config: TerminationConfig):
        self._config = config
        self._asked_by: str | None = None
        self._asking = threading.RLock()  # the main thread may be interrupted while it holds it
        self._timer: threading.Timer | None = None
        self._signals: _Signals | None = None
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self._before: Any = None
        self._is_watching = False

    @property
    def asked_by(self) -> str | None:
        """Who has asked to leave, or None."""
        return self._asked_by

    def start(self) -> None:
        """Start watching.

        Raises:
            ContextError: Outside the main thread, because Python delivers signals only there.
        """
        if self._is_watching:
            return
        if threading.current_thread() is not threading.main_thread():
            raise ContextError(
                "Preemption can only be handled in the main thread, where Python delivers SIGTERM, but training runs in "
                f"{threading.current_thread().name!r}. Train in the main thread."
            )
        self._is_watching = True
        self._signals = _Signals(lambda: self.ask("SIGTERM"), self._give_up_now)
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        self._stopped.clear()
        asks = _asker(self._config.termination_watcher_fn)
        if asks is not None:
            self._watcher = threading.Thread(target=self._watch, args=(asks,), name="replicant-preemption", daemon=True)
            self._watcher.start()
            _watching.add(self)

    def stop(self) -> None:
        """Stop watching, and restore the former handling of SIGTERM."""
        if not self._is_watching:
            return
        self._is_watching = False
        self._stopped.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)
        if self._signals is not None:
            self._signals.close()
        if self._timer is not None:
            self._timer.cancel()
        self.end_watcher()

    def end_watcher(self) -> None:
        """Stop asking `termination_watcher_fn`."""
        self._stopped.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(_SECONDS_PER_REQUEST + 1.0)

    def leave(self) -> None:
        """End the program as configured, after everything was saved."""
        self.stop()
        print(f"replicant: {self._asked_by}: everything is saved, leaving.", file=sys.stderr)  # noqa: T201 - the program's last words
        if self._config.exit_fn is not None:
            self._config.exit_fn()
        else:
            sys.exit(self._config.exit_code)

    def ask(self, by: str) -> None:
        """Note a request, and start the grace period."""
        with self._asking:
            if self._asked_by is not None:
                return
            self._asked_by = by
            self._timer = threading.Timer(self._config.grace_period, self._give_up)
            self._timer.name, self._timer.daemon = "replicant-grace-period", True
            self._timer.start()

    def leaves_now(self) -> bool:
        """Return whether to save and leave after this step. If any of several workers was asked, all leave after the same step."""
        world = _bootstrap.world()
        if world is None:
            return self._asked_by is not None
        if not world.leaves_now(self._asked_by is not None):
            return False
        self.ask("another worker was asked to leave")
        return True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)  # the next one ends the program at once, wherever it is
        self.ask("SIGTERM")

    def _watch(self, asks: Callable[[], bool]) -> None:
        while not self._stopped.wait(self._config.poll_interval):
            if asks():
                self.ask(f"{self._config.termination_watcher_fn} says so")
                return

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):
            message = f"replicant: {self._asked_by}: not saved within {self._config.grace_period:g} s, leaving all the same.\n"
            os.write(2, message.encode())  # not print: another thread may hold its lock forever
        os._exit(self._config.exit_code)

    def _give_up_now(self) -> None:
        os._exit(self._config.exit_code)


_watching: "weakref.WeakSet[Termination]" = weakref.WeakSet()


@atexit.register
def _end_watchers() -> None:
    """End the threads: a user's function may be inside JAX, where no thread must be while the interpreter exits."""
    for termination in list(_watching):
        termination.end_watcher()


class _Signals:
    """Notices SIGTERM even while the main thread, where Python would handle it, waits for a device inside a library.

    Python's own handler in C notes every signal in a pipe at once; a thread reads it.

    Args:
        first: The function to call for the first SIGTERM, as the handler in the main thread does when its turn comes.
        second: The function to call for a second one, if the main thread has not ended the program.
    """

    def __init__(self, first: Callable[[], None], second: Callable[[], None]):
        self._first, self._second = first, second
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="replicant-preemption-signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        found = signal.set_wakeup_fd(self._before)
        if found != self._writer:  # it belongs to somebody else now
            signal.set_wakeup_fd(found)
        os.write(self._writer, b"\0")
        self._thread.join(_SECONDS_PER_REQUEST)
        os.close(self._reader)
        os.close(self._writer)

    def _listen(self) -> None:
        num_terms = 0
        while (number := int.from_bytes(os.read(self._reader, 1))) != 0:
            if self._before != -1:
                with contextlib.suppress(OSError):
                    os.write(self._before, bytes([number]))
            if number == signal.SIGTERM:
                num_terms += 1
                (self._first if num_terms == 1 else self._second)()


def _asker(watcher: Any) -> Callable[[], bool] | None:
    if watcher is None:
        return None
    if callable(watcher):
        return lambda: bool(watcher())
    if isinstance(watcher, str) and watcher.startswith(("http://", "https://")):
        return lambda: _answers(watcher)
    return Path(watcher).exists


def _answers(address: str) -> bool:
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})  # noqa: S310 - its user gave it
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS_PER_REQUEST) as answer:  # noqa: S310 - as above
            return answer.read(1000).decode(errors="replace").strip().upper() not in _NO
    except (urllib.error.URLError, OSError):  # 404: nothing is planned
        return False
