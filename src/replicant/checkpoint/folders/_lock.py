"""A lock on a directory: only one program at a time saves, counts and deletes checkpoints there.

The file ``.replicant.lock`` names its owner, and the operating system holds a lock on it, which ends with the process, however it
ends. Not every file system has such locks, and those of some network file systems work on one computer only. So the owner also
touches the file (``_lock_heartbeat.py``), and an owner on another computer counts as gone if it has not done that for a while.
For an owner on this computer, its process number and start time say whether it is running.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
import time
import weakref
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from . import _lock_heartbeat
from ._lock_owner import Owner

LOCK = ".replicant.lock"
_HELD_BY_OTHERS = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
_UNSUPPORTED = (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)
_MAX_TRIES = 20  # only other programs that take and release the lock at the same time cost a try
_SECONDS_FOR_OWNER = 2.0  # from creating the file to writing the owner into it
_logger = logging.getLogger("replicant.checkpoint")


class DirectoryLock:
    """A lock that is held from ``acquire`` to ``release``, to garbage collection or to the end of the process.

    One process may have several locks on a directory: two managers in one program are that program's own business.
    """

    def __init__(self, directory: Path):
        self.path = directory / LOCK
        self._finalizer: Any = None
        self._pid = os.getpid()  # of the process that has acquired it last

    def acquire(self) -> None:
        """Take the lock. Does nothing if it is already held.

        If an owner on another computer is gone without having released it, this waits until it has been silent for SILENCE_SECONDS.

        Raises:
            CheckpointError: If another program holds the lock, or has taken it over because this one was silent, or if the
                directory cannot be written to.
        """
        if self._finalizer is not None and self._finalizer.alive and os.getpid() == self._pid:
            _require_kept(self.path.parent.resolve() / LOCK)
            return
        self._pid = os.getpid()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            path = self.path.parent.resolve() / LOCK  # the directory's real path, but not the target of a link at the file itself
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
        """Release the lock, if it is held."""
        if self._finalizer is not None:
            self._finalizer()


class _Held:
    """A lock of this process. A forked child has a copy of the table but not the lock, as `pid` shows."""

    def __init__(self, descriptor: int, pid: int):
        self.descriptor, self.pid, self.count = descriptor, pid, 0
        self.touching = _lock_heartbeat.Touching(descriptor)


_held: dict[Path, _Held] = {}


def _leave(path: Path, pid: int) -> None:
    held = _held.get(path)
    if held is None or pid != os.getpid() or held.pid != pid:
        return
    held.count -= 1
    if held.count == 0:
        del _held[path]
        held.touching.end()
        if _other_owner(path) is None:
            path.unlink(missing_ok=True)  # first, because nobody may lock a file that is about to be deleted
        os.close(held.descriptor)


def _other_owner(path: Path) -> tuple[Owner, float] | None:
    """The other program that has written its name into the file, or None if there is no other program or no file."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = _owner_in(descriptor)
        finally:
            os.close(descriptor)
        if found is not None and found[0] != Owner.current():
            return found
    return None


def _require_kept(path: Path) -> None:
    other = _other_owner(path)
    if other is not None:
        raise CheckpointError(
            f"{path.parent} has been taken over by {_name_of(*other)}, because this program sent no heartbeat for "
            f"{_lock_heartbeat.SILENCE_SECONDS:g} s: it was stopped, or the disk was not available. Nothing more is saved here. "
            "End this program, or choose another directory."
        )


def _take(path: Path) -> int:
    for _ in range(_MAX_TRIES):
        descriptor, is_new = _open(path)
        try:
            _require_lock_file(path, descriptor)
            is_free = (is_new and _try_lock(descriptor) is not False) or _is_left(path, descriptor)
            if is_free and _is_same_file(path, descriptor):
                _sign(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise CheckpointError(f"{path} could not be locked, because other programs keep taking and releasing it. Try again.")


def _open(path: Path) -> tuple[int, bool]:
    """Open or create the lock file, and say whether it is new. Links are not followed, and a pipe does not block."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(FileExistsError):
        return os.open(path, flags | os.O_EXCL, 0o644), True
    try:
        return os.open(path, flags, 0o644), False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CheckpointError(_stranger(path, "a symbolic link")) from error


def _require_lock_file(path: Path, descriptor: int) -> None:
    """Check the file, which will be truncated and finally deleted: somebody may have put something else there."""
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        raise CheckpointError(_stranger(path, "not a regular file"))
    if state.st_nlink > 1:
        raise CheckpointError(_stranger(path, "a file that also has another name elsewhere"))
    # The directory's owner can put anything there anyway. On some network file systems, nothing is ours, whoever made it.
    if state.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
        raise CheckpointError(_stranger(path, f"a file of user {state.st_uid}, who is neither you nor the directory's owner"))


def _stranger(path: Path, what: str) -> str:
    return (
        f"{path} is {what}, so Replicant did not make it, and writing to it could destroy what it belongs to. Find out who put it "
        "there, and delete it, or choose a directory in which nobody else can write."
    )


def _try_lock(descriptor: int) -> bool | None:
    """Whether the open file is locked now, or None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (*_HELD_BY_OTHERS, *_UNSUPPORTED):
            raise
        return None if error.errno in _UNSUPPORTED else False
    return True


def _is_left(path: Path, descriptor: int) -> bool:
    """Whether the file may be signed as it is. If not, the caller tries again: the file of an owner that is gone has been deleted.

    Programs on several computers may see at the same time that its owner is gone. Only one of them creates the new file.

    Raises:
        CheckpointError: If another program has the file.
    """
    locked = _try_lock(descriptor)
    owner, since = _read_owner(descriptor)
    if locked and owner is not None and owner.shares_locks:
        return True
    if locked is not True and owner is not None and owner.is_gone:  # a forked child may still hold the file open
        _remove(path, descriptor)
        return False
    if locked is False or (owner is not None and owner.is_here):
        raise CheckpointError(_refusal(path, owner, since))
    if not _is_silent(path, owner, since):
        if not _is_same_file(path, descriptor):  # another program has taken it over
            return False
        raise CheckpointError(_refusal(path, *(_other_owner(path) or (owner, since))))
    _remove(path, descriptor)
    return False


def _is_silent(path: Path, owner: Owner | None, since: float) -> bool:
    _logger.warning(
        "%s was locked by %s. It is taken over once that process has sent no heartbeat for %g s.",
        path.parent,
        _name_of(owner, since),
        _lock_heartbeat.SILENCE_SECONDS,
    )
    try:
        return _lock_heartbeat.is_silent(path)
    except FileNotFoundError:  # it has left
        return True


def _remove(path: Path, descriptor: int) -> None:
    """Delete the file that was opened, but not another one that somebody has created since."""
    turn = path.with_name(f"{path.name}.turn")  # whoever creates this file may delete
    try:
        os.close(os.open(turn, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            if _lock_heartbeat.is_silent(turn):  # its maker was killed
                turn.unlink()
        return
    try:
        if _is_same_file(path, descriptor):
            path.unlink()
    finally:
        turn.unlink(missing_ok=True)


def _refusal(path: Path, owner: Owner | None, since: float) -> str:
    return (
        f"{path.parent} is in use by {_name_of(owner, since)}. Two programs that save, count and delete in one directory would "
        f"destroy each other's checkpoints. Choose another directory, or end that program. If it no longer runs, delete {path}."
    )


def _name_of(owner: Owner | None, since: float) -> str:
    if owner is None:
        return "another program"
    host = "".join(letter for letter in owner.host[:100] if letter.isprintable())
    return f"process {owner.pid} on {host}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}"


def _read_owner(descriptor: int) -> tuple[Owner | None, float]:
    """Who has written its name into the file, and when. Waits a little for one that is about to."""
    deadline = time.monotonic() + _SECONDS_FOR_OWNER
    while (found := _owner_in(descriptor)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return found or (None, 0.0)


def _owner_in(descriptor: int) -> tuple[Owner, float] | None:
    try:
        fields = json.loads(os.pread(descriptor, 4096, 0))
        time.localtime(fields["since"])  # raises if it is not a time
        return Owner(str(fields["host"]), str(fields["boot"]), int(fields["pid"]), int(fields["started"])), fields["since"]
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return None


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
