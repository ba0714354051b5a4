"""A folder that is filled under a temporary name and appears in one step, whatever happens to the process or the computer.

The temporary name says who writes, so leftovers of a killed process can be told from a write in progress, and removed.
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

from ...errors import CheckpointError
from ._lock_owner import Owner, is_running, is_this_machine

_PARTIAL = re.compile(r"\..+\.([0-9a-f]{8})-(\d+)-(\d+)-[0-9a-f]{8}\.partial")
_CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # errors of fsync for a folder if only files can be flushed
_ABANDONED_SECONDS = 24 * 3600.0  # processes of other computers cannot be checked, but no write takes a day


def partial_name(path: Path) -> Path:
    """Return a new name for a folder that is to become `path`, which says that this process fills it."""
    owner = Owner.current()
    return path.parent / f".{path.name}.{owner.machine}-{owner.pid}-{owner.started}-{secrets.token_hex(4)}.partial"


@contextmanager
def appearing(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Provide a folder to fill, which becomes `path` at the end, or is deleted after an error.

    Args:
        path: The folder that must not exist yet.
        folder: Its name until then, from ``partial_name``.

    Raises:
        CheckpointError: If `path` exists, or if `path` is in place but its name may not be on the disk.
    """
    _require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    folder = folder or partial_name(path)
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
            f"{path} is written and complete, but the file system did not confirm that its name is on the disk ({error}), so it "
            "could be missing after a failure of this computer."
        ) from error


def _require_free(path: Path) -> None:
    if os.path.lexists(path):
        raise CheckpointError(
            f"{path} already exists, and a checkpoint is never overwritten. Choose another path, or delete it first."
        )


def remove_leftovers(directory: Path) -> None:
    """Remove what dead processes left half written or half deleted in `directory`."""
    for path in directory.iterdir():
        match = _PARTIAL.fullmatch(path.name)
        if match and _is_abandoned(path, match):
            shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path, match: re.Match[str]) -> bool:
    if is_this_machine(match[1]):
        return not is_running(int(match[2]), int(match[3]))
    try:
        return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    except OSError:  # another process has just removed it
        return False


def remove(path: Path) -> None:
    """Delete the folder `path` in one step, so that it is never an incomplete checkpoint. Does nothing if it is gone."""
    doomed = partial_name(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def flush(stream: Any) -> None:
    """Wait until what was written to an open file is on the disk."""
    stream.flush()
    os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, unless the file system (as some FUSE mounts) cannot wait for that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise
    finally:
        os.close(descriptor)
