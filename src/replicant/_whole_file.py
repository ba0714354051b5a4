"""Files on this machine that are written whole or not at all, and regular files that are read."""

import contextlib
import errno
import os
import secrets
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
    """Open a file for reading. A pipe in its place does not block, and a device is not touched.

    Raises:
        OSError: If it cannot be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return cast("BinaryIO", os.fdopen(descriptor, "rb", buffering))
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "It is not a regular file but a pipe, a device or a socket", os.fspath(path))


def write_whole(path: Path, data: bytes | str) -> None:
    """Make this the contents of a file in one step, with its bytes on the disk first.

    Raises:
        OSError: If it cannot be written. What was there before stays.
    """
    raw = data.encode() if isinstance(data, str) else data
    if path.exists() and not path.is_file():  # such as /dev/stdout
        path.write_bytes(raw)
        return
    with writing_whole(path) as file:
        file.write(raw)


@contextlib.contextmanager
def writing_whole(path: Path) -> Iterator["WholeFile"]:
    """Provide a file to write, which takes this name at the end, or is removed after an error.

    Raises:
        OSError: If it cannot be written. What was there before stays.
    """
    file = WholeFile(path)
    try:
        yield file
        file.finish()
    finally:
        file.discard()


class WholeFile:
    """A file that is written under a name of its own beside its place, and takes that in one step.

    It is removed if a write fails, if nobody finishes it, and at the end of the program.

    Raises:
        OSError: If it cannot be made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # a link stays, and leads to the new file
        self.own_path = self.path.with_name(f"{self.path.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        self._file = self.own_path.open("xb")
        self.discard = weakref.finalize(self, _remove, self._file, self.own_path)

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._trying(lambda: self._file.write(data))

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Add these parts."""
        self._trying(lambda: self._file.writelines(parts))

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._file.tell()

    def flush(self) -> None:
        """Wait until the bytes are on the disk."""
        self._trying(self._flush)

    def finish(self) -> None:
        """Put the file in its place, with its bytes on the disk first."""
        self.flush()
        self._trying(lambda: self.own_path.replace(self.path))

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _trying(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except OSError:
            self.discard()
            raise


def _remove(file: BinaryIO, path: Path) -> None:
    close_after_failure(file)
    with contextlib.suppress(OSError):  # a disk that fails may also refuse this; its name says that it is nobody's
        path.unlink(missing_ok=True)


def close_after_failure(file: BinaryIO) -> None:
    """Close a file whose bytes are not wanted any more. What waits in memory is tried once more, and may fail again."""
    with contextlib.suppress(OSError):
        file.close()
