"""A lock on a directory: one program at a time saves, counts and deletes there.

The file ``.replicant.lock`` names its owner, and the operating system holds a lock on it, which ends with the process however that
ends. Where the file system has no such locks, the owner's number and start time decide.
"""

import errno
import fcntl
import json
import os
import stat
import time
import weakref
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ._owner import Owner

LOCK = ".replicant.lock"
_HELD_BY_OTHERS = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)
_MAX_TRIES = 20  # only other programs that take and leave the lock at the same time cost one
_SECONDS_FOR_OWNER = 2.0  # between making the file and writing the owner into it


class DirectoryLock:
    """Held from ``acquire`` to ``release``, to garbage collection or to the end of the process.

    Within one process there may be several on a directory: two managers of one program are the program's own business.
    """

    def __init__(self, directory: Path):
        self.path = directory / LOCK
        self._finalizer: Any = None

    def acquire(self) -> None:
        """Take the lock; nothing happens if it is held already.

        Raises CheckpointError if another program holds it, or if the directory cannot be written.
        """
        if self._finalizer is not None and self._finalizer.alive and os.getpid() == self._pid:
            return
        self._pid = os.getpid()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            path = self.path.parent.resolve() / LOCK  # what it is itself, not what a link in its place leads to
            held = _held.get(path)
            if held is None or held.pid != self._pid:
                held = _held[path] = _Held(_take(path), self._pid)
        except OSError as error:
            raise CheckpointError(
                f"Nothing can be saved in {self.path.parent} ({error}). Choose a directory that this program may write to."
            ) from error
        held.count += 1
        self._finalizer = weakref.finalize(self, _leave, path, self._pid)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._finalizer is not None:
            self._finalizer()


class _Held:
    """A lock of this process. A forked child has a copy of the table, but not the lock: `pid` tells."""

    def __init__(self, descriptor: int, pid: int):
        self.descriptor, self.pid, self.count = descriptor, pid, 0


_held: dict[Path, _Held] = {}


def _leave(path: Path, pid: int) -> None:
    held = _held.get(path)
    if held is None or pid != os.getpid() or held.pid != pid:
        return
    held.count -= 1
    if held.count == 0:
        del _held[path]
        path.unlink(missing_ok=True)  # first: nobody may lock a file that is about to go
        os.close(held.descriptor)


def _take(path: Path) -> int:
    for _ in range(_MAX_TRIES):
        descriptor = _open(path)
        try:
            _require_lock_file(path, descriptor)
            if _is_ours(path, descriptor) and _is_same_file(path, descriptor):
                _sign(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise CheckpointError(f"{path} could not be locked: other programs take it and leave it all the time. Try again.")


def _open(path: Path) -> int:
    """Open the lock file, or make it. Never what a link leads to; a pipe in its place does not keep us waiting."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CheckpointError(_stranger(path, "a symbolic link")) from error


def _require_lock_file(path: Path, descriptor: int) -> None:
    """What is opened is about to be truncated, and deleted in the end: somebody may have put something else there."""
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        raise CheckpointError(_stranger(path, "no regular file"))
    if state.st_nlink > 1:
        raise CheckpointError(_stranger(path, "a file that has another name elsewhere, too"))
    # The directory's owner can put anything there anyway; and on some network file systems nothing is ours, whoever made it.
    if state.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
        raise CheckpointError(_stranger(path, f"a file of user {state.st_uid}, and neither yours nor the directory's owner's"))


def _stranger(path: Path, what: str) -> str:
    return (
        f"{path} is {what}, and nothing that Replicant made: writing to it could destroy what it belongs to. Find out who put it "
        "there, and delete it, or choose a directory in which nobody else can write."
    )


def _is_ours(path: Path, descriptor: int) -> bool:
    """Lock the open file. False: try again with a new file.

    Raises CheckpointError if another program has it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (*_HELD_BY_OTHERS, *_UNSUPPORTED):
            raise
        owner, since = _read_owner(descriptor)
        if error.errno in _UNSUPPORTED and owner is None:
            return True
        if owner is not None and owner.is_gone:  # a child that it forked may hold the file open still
            path.unlink(missing_ok=True)
            return False
        raise CheckpointError(_refusal(path, owner, since)) from error
    return True


def _refusal(path: Path, owner: Owner | None, since: float) -> str:
    who = "another program"
    if owner is not None:
        host = "".join(letter for letter in owner.host[:100] if letter.isprintable())
        who = f"process {owner.pid} on {host}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}"
    return (
        f"{path.parent} is in use by {who}: two programs that save, count and delete in one directory would destroy each other's "
        f"checkpoints. Choose another directory, or end that program. If it runs no more, delete {path}."
    )


def _read_owner(descriptor: int) -> tuple[Owner | None, float]:
    """Who has written its name into the file, and when."""
    deadline = time.monotonic() + _SECONDS_FOR_OWNER
    while time.monotonic() < deadline:
        try:
            fields = json.loads(os.pread(descriptor, 4096, 0))
            time.localtime(fields["since"])  # raises if that is no time
            return Owner(str(fields["host"]), str(fields["boot"]), int(fields["pid"]), int(fields["started"])), fields["since"]
        except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
            time.sleep(0.02)
    return None, 0.0


def _is_same_file(path: Path, descriptor: int) -> bool:
    """Whether nobody has deleted or replaced the file between opening and locking it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    owner = Owner.current()
    fields = {"host": owner.host, "boot": owner.boot, "pid": owner.pid, "started": owner.started, "since": time.time()}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(fields).encode(), 0)
