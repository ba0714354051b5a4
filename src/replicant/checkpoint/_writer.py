"""Background writes: one at a time. Its error is raised by the next save or wait."""

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
        """Start `write`, after the one before it has ended.

        Raises:
            BaseException: What the write before it raised; then `write` has not started.
        """
        self.wait()
        # Not a daemon: a write that has started is finished before the program ends by itself.
        self._thread = threading.Thread(target=self._run, args=(write,), name="replicant-checkpoint", daemon=False)
        _live.add(self)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the write in progress, and raise what it raised, once. There is no deadline, because a disk may be slow."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - not handled here: the next start or wait raises it
            self._error = error


@atexit.register
def _wait_for_all() -> None:
    """Wait at the end of the program, because nobody else would notice an error then."""
    for writer in list(_live):
        writer.wait()
