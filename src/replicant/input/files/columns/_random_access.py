"""Files of tables that Arrow opens: one on this machine, or one at a URL."""

import io
from collections.abc import Callable, Iterable
from typing import TypeVar

from ...._whole_file import open_regular
from ....storage._ranges import RangedFile
from ....storage._read_ahead import RemoteFile
from ....storage._retry import Started
from ....storage._urls import is_url
from ._numpy_columns import import_pyarrow

_PIECE = 1 << 16  # bytes
_STOP_SECONDS = 5.0  # reading that was interrupted ends after one

_Result = TypeVar("_Result")


class RandomAccessFile:
    """A file that is read at several places. ``arrow`` is what Arrow reads it from.

    It is one file to the end, even if another one takes its name: at a URL, reading is an error then.

    Args:
        method: For messages.
        path: The path or URL.
        in_order: Whether it is mostly read from its beginning to its end. At a URL, what follows is read ahead then.

    Raises:
        OSError: If it cannot be opened.
    """

    def __init__(self, method: str, path: str, *, in_order: bool) -> None:
        arrow = import_pyarrow(method)
        self.remote: RangedFile | RemoteFile | None = None
        if not is_url(path):
            open_regular(path).close()  # Arrow would wait for whoever writes to a pipe
            self.arrow = arrow.OSFile(path)
        elif in_order:
            self.remote = RemoteFile(path)
            self.arrow = arrow.PythonFile(io.BufferedReader(self.remote, _PIECE), mode="r")
        else:
            self.remote = RangedFile(path)
            self.arrow = arrow.PythonFile(self.remote, mode="r")

    @property
    def identity(self) -> str | None:
        """A text that is another one once the contents of the file are; None for a file on this machine."""
        return None if self.remote is None else str(self.remote.facts)

    def announce(self, ranges: Iterable[tuple[int, int]], then: Iterable[tuple[int, int]]) -> None:
        """Say which bytes will be read next and after that, so that a store is asked for several of them at once."""
        if isinstance(self.remote, RangedFile):
            self.remote.announce(ranges, then)

    def interruptible(self, call: Callable[[], _Result]) -> _Result:
        """Return what ``call()`` returns, which reads this file.

        At a URL, it runs on a thread of its own, because Ctrl-C and handlers of signals wait while Arrow waits for a store.
        """
        if not isinstance(self.remote, RangedFile):
            return call()
        reading = Started(call)
        try:
            return reading.result()
        finally:
            if not reading.done.is_set():  # interrupted
                self.remote.stop()
                if reading.done.wait(_STOP_SECONDS):
                    self.remote.resume()

    def close(self) -> None:
        """Close the file."""
        self.arrow.close()
        if self.remote is not None:
            self.remote.close()
