"""Shows on stderr what a plan is waiting for, in a line that is redrawn on a terminal or in a notebook and repeated in a log."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, TextIO

from . import _stages

_REDRAWN, _LOGGED = 1.0, 30.0  # seconds between two lines


class Waiting:
    """A line that names a long wait and its seconds, and is updated by a thread until the ``with`` block ends.

    Args:
        name: The name of the command.
        stream: The stream to write to. The default is stderr, and stdout in a notebook, which shows stderr as an error.
        seconds: The seconds between two updates. The default is 1, or 30 in a log.
    """

    def __init__(self, name: str, stream: TextIO | None = None, seconds: float | None = None):
        self._name = name
        self._stream = (sys.stdout if _in_notebook(sys.stderr) else sys.stderr) if stream is None else stream
        self._redraws = redraws(self._stream)
        self._seconds = seconds or (_REDRAWN if self._redraws else _LOGGED)
        self._text, self._began, self._width = "", time.monotonic(), 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, daemon=True, name="replicant waiting")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._clear()

    def begin(self, text: str) -> None:
        """Show what is waited for from now on."""
        with self._lock:
            self._text, self._began = text, time.monotonic()
            self._write()

    def _tick(self) -> None:
        while not self._over.wait(self._seconds):
            with self._lock:
                if self._text:
                    self._write()

    def _write(self) -> None:
        seconds = int(time.monotonic() - self._began)
        took = "" if seconds == 0 else f", {seconds} s" if seconds < 60 else f", {seconds // 60}:{seconds % 60:02d} min"
        line = f"{self._name}: {self._text}{took} ..."
        if _in_notebook(self._stream):  # which knows no code that clears a line: blanks hide what was longer
            self._stream.write(f"\r{line:{self._width}}")
            self._width = max(self._width, len(line))
        else:
            self._stream.write(f"\r\033[K{line}" if self._redraws else f"{line}\n")
        self._stream.flush()

    def _clear(self) -> None:
        if self._redraws:
            self._stream.write(f"\r{' ' * self._width}\r" if _in_notebook(self._stream) else "\r\033[K")
            self._stream.flush()


def redraws(stream: TextIO) -> bool:
    """Whether a line on `stream` can be redrawn, as on a terminal and in a notebook."""
    return stream.isatty() or _in_notebook(stream)


def _in_notebook(stream: TextIO) -> bool:
    return type(stream).__module__.startswith("ipykernel.")


@contextmanager
def waiting(name: str, *, in_logs: bool = False) -> Iterator[None]:
    """Show the stages of a plan in the ``with`` block, unless there is a listener already.

    Args:
        name: The name of what is waited for.
        in_logs: Whether to show them where lines cannot be redrawn, too.
    """
    if _stages.heard() or not (in_logs or redraws(sys.stderr)):
        yield
        return
    with Waiting(name) as line, _stages.listening(line.begin):
        yield
