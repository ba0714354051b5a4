"""A copy of a growing local file on an object store, for logs: nothing can be added to an object."""

import contextlib
import os
import time
import warnings
from functools import partial
from pathlib import Path

from ._retry import RemoteError, Started
from ._upload import Upload

_SECONDS = 30.0  # between two uploads
_MOST_OF_THE_TIME = 1 / 20  # that uploads of a large file may take


class StoreCopy:
    """Keeps an object the same as a local file. What goes wrong with either is a warning: a log must not end a program.

    A forked child does nothing with the copy of its parent.

    Args:
        file: The local file.
        url: The object, of which this is the only writer.
    """

    def __init__(self, file: Path, url: str) -> None:
        self.file, self.url = file, url
        self._sent = 0  # bytes
        self._sending: Started | None = None
        self._next = 0.0  # when the next upload may begin
        self._process = os.getpid()
        self.is_over = False  # because the local file has failed

    @property
    def is_own(self) -> bool:
        """Whether it was made in this process, and not in the parent of a forked one."""
        return self._process == os.getpid()

    def update(self) -> None:
        """Begin to upload what the file holds now, unless there was an upload just before."""
        if not self.is_own or self.is_over or time.monotonic() < self._next:
            return
        if self._sending is not None and not self._sending.done.is_set():
            return
        self._collect()
        try:
            if self.file.stat().st_size > self._sent:
                self._next = time.monotonic() + _SECONDS
                self._sending = Started(partial(self._send, self.file.read_bytes()))
        except OSError as error:
            self.stop(error)

    def finish(self) -> None:
        """Wait until the object is the file, and delete the file. If that fails, it stays, and the warning names it."""
        if not self.is_own:
            return
        try:
            if self._sending is not None:
                with contextlib.suppress(RemoteError):  # the whole file is sent once more
                    self._sending.result()
            if self.file.stat().st_size > self._sent:
                self._send(self.file.read_bytes())
            self.file.unlink()
        except RemoteError as error:
            warnings.warn(f"{error}. What it would hold is in {str(self.file)!r}: copy it with the store's own tool.", stacklevel=2)
        except OSError as error:
            self.stop(error)

    def stop(self, error: OSError) -> None:
        """Say that the local file has failed, and renew the object no more before the end."""
        if not self.is_over:
            self.is_over = True
            warnings.warn(
                f"the log {self.url} ends here, because its file on this machine has failed: {error}. Make room there, or name "
                "another folder for temporary files in TMPDIR.",
                stacklevel=2,
            )

    def _collect(self) -> None:
        if self._sending is not None:
            try:
                self._sending.result()
            except RemoteError as error:
                warnings.warn(f"{error}. It is tried again, at the latest when the log is closed.", stacklevel=2)
            self._sending = None

    def _send(self, data: bytes) -> None:
        began = time.monotonic()
        with Upload(self.url, replaces=True) as upload:
            upload.write(data)
        self._sent = len(data)
        took = time.monotonic() - began
        self._next = max(self._next, began + took / _MOST_OF_THE_TIME)
