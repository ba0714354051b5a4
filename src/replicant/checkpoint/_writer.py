"""Writing in the background: one write at a time, errors told to whoever saves or waits next."""

import atexit
import threading
import weakref
from collections.abc import Callable

_live: "weakref.WeakSet[BackgroundWriter]" = weakref.WeakSet()


class BackgroundWriter:
    """Runs one write at a time on a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Begin `write`, after the one before it has ended.

        Raises what the one before it raised; `write` has not begun then.
        """
        self.wait()
        # No daemon: a write that has begun is finished when the program ends by itself.
        self._thread = threading.Thread(target=self._run, args=(write,), name="replicant-checkpoint", daemon=False)
        _live.add(self)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the write in progress, and raise, once, what it raised. There is no deadline: a disk may be slow."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - nothing is handled here: the next start or wait raises it
            self._error = error


@atexit.register
def _wait_for_all() -> None:
    """At the end of the program there is nobody else whom an error could be told."""
    for writer in list(_live):
        writer.wait()
