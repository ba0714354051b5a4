"""Heartbeats in a folder that several computers may see: a file that its owner touches, and others watch.

Times are those of the file system, which is the same for all, because the computers' clocks may differ.
"""

import os
import secrets
import threading
import time
from pathlib import Path

TOUCH_SECONDS = 5.0  # between two heartbeats
SILENCE_SECONDS = 30.0  # without a heartbeat, after which an owner counts as gone
_LOOK_SECONDS = 0.25
_END_SECONDS = 1.0


class Touching:
    """Touches an open file until `end`. The caller closes the descriptor afterwards."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._ended = threading.Event()
        self._turn = threading.RLock()  # to use the descriptor, whose number may be reused once it is closed
        self._thread = threading.Thread(target=self._run, name="replicant-lock", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop the heartbeats."""
        with self._turn:
            self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._ended.wait(TOUCH_SECONDS):
            with self._turn:
                if self._ended.is_set():
                    return
                try:
                    os.utime(self._descriptor)
                except OSError:  # the disk is not available, so nobody else sees the file; it may be back next time
                    continue


def is_silent(path: Path) -> bool:
    """Wait until the owner of the file `path` sends a heartbeat (False), or has sent none for SILENCE_SECONDS (True).

    Raises:
        FileNotFoundError: If the file is deleted in the meantime.
    """
    seen = _touched(path)
    until = time.monotonic() + SILENCE_SECONDS - max(0.0, _now(path.parent) - seen / 1e9)
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_LOOK_SECONDS, left))
        if _touched(path) != seen:
            return False
    return True


def _touched(path: Path) -> int:
    """When the file was touched, in nanoseconds. It is opened, because a network file system may answer from a cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)


def _now(folder: Path) -> float:
    """The time of the file system, in seconds."""
    path = folder / f".replicant.time-{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
