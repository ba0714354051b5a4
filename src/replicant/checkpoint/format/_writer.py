"""Background writes: one at a time. Its error is raised by the next save or wait, or at the end of the program."""

import atexit
import threading
import weakref
from collections.abc import Callable

from ...errors import CheckpointError

_live: "weakref.WeakSet[BackgroundWriter]" = weakref.WeakSet()
_failed: "set[BackgroundWriter]" = set()  # whose errors nobody has heard, though the checkpoints themselves may be gone


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
        thread = threading.Thread(target=self._run, args=(write,), name="replicant-checkpoint", daemon=False)
        _live.add(self)
        thread.start()
        self._thread = thread

    def wait(self) -> None:
        """Wait for the write in progress, and raise what it raised, once. There is no deadline, because a disk may be slow."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            _failed.discard(self)
            raise error

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - not handled here: the next start or wait raises it
            self._error = error
            _failed.add(self)


@atexit.register
def _wait_for_all() -> None:
    """Wait for all at the end of the program, and raise all errors, because nobody else would notice them then."""
    errors: list[BaseException] = []
    for writer in {*_live, *_failed}:
        try:
            writer.wait()
        except BaseException as error:  # noqa: BLE001 - raised below, once all have ended
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        told = "".join(f"\n  {type(error).__name__}: {error}" for error in errors)  # Python would not print those of a group
        raise CheckpointError(f"{len(errors)} checkpoints could not be written in the background:{told}")
