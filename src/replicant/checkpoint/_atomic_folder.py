"""A folder that is filled under a temporary name and appears at one stroke, whatever happens to the process or the computer.

The temporary name says who writes, so what a killed process left can be told from what is being written and is removed.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ._owner import Owner, is_running

_PARTIAL = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{8}\.partial")
_CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # what fsync says of a folder where only files can be flushed
_ABANDONED_SECONDS = 24 * 3600.0  # another computer's process cannot be asked; none takes a day to write


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` at the end; after an error it is gone.

    Raises CheckpointError if `path` exists, and, with `path` in place, if its name may not be on the disk.
    """
    _require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    owner = Owner.current()
    folder = path.parent / f".{path.name}.{owner.machine}-{owner.pid}-{owner.started}-{secrets.token_hex(4)}.partial"
    folder.mkdir()
    try:
        yield folder
        flush_folder(folder)
        _require_free(path)
        folder.rename(path)  # fails if there is a folder with files now
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    try:
        flush_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path} is written and whole, but the file system did not confirm that its name is on the disk ({error}): after a "
            "failure of this computer it could be missing."
        ) from error


def _require_free(path: Path) -> None:
    if os.path.lexists(path):
        raise CheckpointError(
            f"{path} exists already, and a checkpoint is never overwritten: choose another path, or delete it first."
        )


def remove_leftovers(directory: Path) -> None:
    """Remove what processes that are gone have half written or half deleted in `directory`."""
    machine = Owner.current().machine
    for path in directory.iterdir():
        match = _PARTIAL.fullmatch(path.name)
        if match and _is_abandoned(path, match, machine):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path, match: re.Match[str], machine: str) -> bool:
    if match[1] == machine:
        return not is_running(int(match[2]), int(match[3]))
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except OSError:  # somebody else has just removed it
        return False


def remove(path: Path) -> None:
    """Delete the folder `path` at one stroke: it is whole, and then no checkpoint any more. Nothing happens if it is gone."""
    owner = Owner.current()
    doomed = path.parent / f".{path.name}.{owner.machine}-{owner.pid}-{owner.started}-{secrets.token_hex(4)}.partial"
    with contextlib.suppress(FileNotFoundError):
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def write_durably(file: Path, data: bytes) -> None:
    """Make the file `file`, and wait until it is on the disk."""
    with file.open("xb") as stream:
        stream.write(data)
        flush(stream)


def flush(stream: Any) -> None:
    """Wait until what was written to an open file is on the disk."""
    stream.flush()
    os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can wait for that: some FUSE mounts cannot."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise
    finally:
        os.close(descriptor)
