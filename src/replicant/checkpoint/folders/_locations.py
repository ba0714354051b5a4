"""Where checkpoints lie: in folders of this machine, or at URLs of an object store. What differs between them is behind this file.

A local path is a `pathlib.Path`, and a URL a `RemotePath`, which has the methods of it that checkpoints use. ``_atomic_folder`` and
``_lock`` are for the former, and ``_atomic_at_store`` is for the latter.
"""

import contextlib
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from ...errors import CheckpointError
from ...storage._path import RemotePath
from ...storage._retry import RemoteError
from ...storage._urls import folder_at, is_url
from ...storage._write import is_missing
from . import _atomic_at_store, _atomic_folder
from ._lock import DirectoryLock

Place: TypeAlias = Path | RemotePath


def place_of(what: str, name: Any) -> Place:
    """Return the path or URL that a user passed. A message begins with `what`.

    Raises:
        CheckpointError: If it is a URL that has lost one of its slashes, has no bucket, or names several stores.
    """
    found = folder_at(what, name, CheckpointError)
    return RemotePath(found) if isinstance(found, str) else found


def place_at(text: str) -> Place:
    """Return the place whose text this is."""
    return RemotePath(text) if is_url(text) else Path(text)


def is_remote(place: Place) -> bool:
    """Return whether this is a URL of an object store."""
    return isinstance(place, RemotePath)


def draft_name(path: Place) -> Place:
    """Return a new name for the folder with the files of a checkpoint that is written to `path`."""
    return _atomic_at_store.draft_of(path) if isinstance(path, RemotePath) else _atomic_folder.partial_name(path)


def appearing(path: Place, folder: Place | None = None) -> AbstractContextManager[Place]:
    """Provide a folder to fill, which becomes the checkpoint `path` in one step, or is deleted after an error.

    Args:
        path: The checkpoint, which must not exist yet.
        folder: The folder, from ``draft_name``.

    Raises:
        CheckpointError: If `path` exists, or if it is not known whether it does after all.
    """
    if isinstance(path, RemotePath):
        return _atomic_at_store.appearing_at(path, None if folder is None else _atomic_at_store.Draft(str(folder)))
    assert not isinstance(folder, RemotePath), "a draft lies where its checkpoint does"
    return _atomic_folder.appearing(path, folder)


def folders_in(directory: Place) -> list[Place]:
    """Return what is in a directory and may be a checkpoint; nothing if there is no such directory."""
    if isinstance(directory, RemotePath):
        return [directory / entry.name for entry in directory.entries() if entry.is_folder]
    return list(directory.iterdir()) if directory.is_dir() else []


@contextmanager
def created(file: Place) -> Iterator[Any]:
    """Create a file, and provide it with ``write`` and ``tell``. At the end, it will outlast a failure of this computer.

    Raises:
        OSError: If it cannot be written.
    """
    if isinstance(file, RemotePath):
        with file.upload() as upload:
            yield upload
        return
    with file.open("xb") as stream:
        yield stream
        _atomic_folder.flush(stream)


def remove(path: Place) -> bool:
    """Delete the checkpoint `path` in one step, and return whether it is gone. Otherwise warn: nothing else is affected."""
    try:
        _remove(path)
    except OSError as error:  # a RemoteError, too
        warnings.warn(f"The old checkpoint {path} could not be deleted: {error}", stacklevel=3)
        return False
    return True


def _remove(path: Place) -> None:
    if isinstance(path, RemotePath):
        _atomic_at_store.remove_at(path)
    else:
        _atomic_folder.remove(path)


@contextlib.contextmanager
def reaching() -> Iterator[None]:
    """Turn errors of an object store that does not answer into a CheckpointError, which names the URL as they do."""
    try:
        yield
    except RemoteError as error:
        raise CheckpointError(str(error)) from error


def is_damage(error: OSError) -> bool:
    """Whether an error says something about a file, and not about an object store that cannot be reached."""
    return not isinstance(error, RemoteError) or is_missing(error)


class NoLock:
    """In place of the lock of a directory: at object stores, the manifest of each checkpoint decides who has written it."""

    def acquire(self) -> None:
        """Do nothing."""

    def release(self) -> None:
        """Do nothing."""


def lock_on(directory: Place) -> DirectoryLock | NoLock:
    """Return the lock that only one program at a time can hold on a directory."""
    return NoLock() if isinstance(directory, RemotePath) else DirectoryLock(directory)
