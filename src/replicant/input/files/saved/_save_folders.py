"""The folders that saves write to, and what becomes of those whose writers were killed.

While a save writes to ``run-X``, it holds a lock of the operating system on the file ``run-X.lock`` next to it, which ends with the
process, however it ends. The next save removes each folder that nobody writes to any more and that the index does not name.
"""

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

_RUN = re.compile(r"run-[0-9a-f]{32}")
_LOCK = ".lock"


def is_run(name: object) -> bool:
    """Return whether this may be the name of such a folder."""
    return isinstance(name, str) and _RUN.fullmatch(name) is not None


@contextlib.contextmanager
def new_run(path: Path) -> Iterator[Path]:
    """Make a new folder, and remove it if an error comes.

    Raises:
        OSError: If a file cannot be written.
    """
    path.mkdir(parents=True, exist_ok=True)
    lock, descriptor = _new_lock(path)
    folder = lock.with_suffix("")
    try:
        folder.mkdir()
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _new_lock(path: Path) -> tuple[Path, int]:
    """A lock file that this process has locked, if the file system has locks."""
    while True:
        lock = path / f"run-{uuid.uuid4().hex}{_LOCK}"
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):  # without locks, nobody else can lock the file either, and so it is left alone
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock.exists():  # else another save found it between these two calls, and took it for one that was left behind
            return lock, descriptor
        os.close(descriptor)


def remove_abandoned(path: Path, current: Callable[[], str | None]) -> None:
    """Remove the folders that nobody writes to, but not the one whose name ``current()`` returns."""
    names = {entry.name.removesuffix(_LOCK) for entry in path.iterdir()}
    for name in filter(is_run, names):
        with _ended(path / f"{name}{_LOCK}") as ended:
            # A writer names its folder in the index before it ends, so only now the index says whether the folder is in use.
            if ended and name != current():
                shutil.rmtree(path / name, ignore_errors=True)


@contextlib.contextmanager
def _ended(lock: Path) -> Iterator[bool]:
    """Whether nobody holds this lock. If so, the file is removed at the end."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield not os.path.lexists(lock)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
        with contextlib.suppress(OSError):
            lock.unlink()
    finally:
        os.close(descriptor)
