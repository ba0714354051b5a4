"""Blocks of objects in a folder of this host, which all of its processes share. Those that were not used for longest go first.

A block appears under its name in one step, carries its length and checksum, and its name depends on the identity of the object. So
a reader finds a whole block of the right version or none, whatever happens to the one that writes it.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..errors import ConfigurationError

FOLDER, LIMIT = "REPLICANT_REMOTE_CACHE", "REPLICANT_REMOTE_CACHE_BYTES"
_DEFAULT_LIMIT = 10 << 30  # bytes
_HEAD = struct.Struct("<QI")  # length and checksum of what follows
_BLOCK, _PARTIAL = ".block", ".partial"
_LOCK = "lock"
_LOCK_SECONDS, _PAUSE_SECONDS = 1.0, 0.005


class BlockCache:
    """A folder with blocks, of ``limit`` bytes at most. Errors of the folder's disk only mean that nothing is found there."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def get(self, key: str, size: int) -> bytes | None:
        """Return a block, or None if it is not there or damaged."""
        path = self._path(key)
        try:
            found = path.read_bytes()
        except OSError:
            return None
        data = found[_HEAD.size :]
        if len(data) != size or found[: _HEAD.size] != _HEAD.pack(size, zlib.crc32(data)):
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):  # it has been removed since
            os.utime(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep a block, and remove others if there are too many bytes now."""
        if len(data) + _HEAD.size > self.limit:
            return
        path = self._path(key)
        partial = path.with_name(f"{secrets.token_hex(8)}{_PARTIAL}")
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked():  # so that all writers together stay below the limit
                self._make_room(len(data) + _HEAD.size)
                try:
                    partial.write_bytes(_HEAD.pack(len(data), zlib.crc32(data)) + data)
                    partial.replace(path)
                finally:
                    partial.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{hashlib.blake2b(key.encode('utf-8', 'surrogateescape'), digest_size=20).hexdigest()}{_BLOCK}"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the folder, which ends with the process, however it ends.

        Raises:
            BlockingIOError: If another process keeps it, because it was stopped, for example.
        """
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def _make_room(self, needed: int) -> None:
        """Remove what dead writers left, and the blocks that were not used for longest, until this many bytes are free."""
        blocks: list[tuple[float, int, str]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # a reader has removed a damaged block
                    found = entry.stat()
                    if entry.name.endswith(_PARTIAL):
                        os.unlink(entry.path)  # noqa: PTH108 - nobody else writes while this process holds the lock
                    elif entry.name.endswith(_BLOCK):
                        blocks.append((found.st_mtime, found.st_size, entry.path))
        excess = sum(size for _, size, _ in blocks) + needed - self.limit
        for _, size, path in sorted(blocks):
            if excess <= 0:
                return
            Path(path).unlink(missing_ok=True)
            excess -= size


def block_cache() -> BlockCache | None:
    """Return the cache that the environment asks for, or None.

    Raises:
        ConfigurationError: If its limit is not a number of bytes.
    """
    folder = os.environ.get(FOLDER, "").strip()
    if not folder:
        return None
    text = os.environ.get(LIMIT, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise ConfigurationError(f"{LIMIT}={text!r} is not a number of bytes. Set it to {_DEFAULT_LIMIT}, say, or not at all.")
    return BlockCache(Path(folder), int(text) if text else _DEFAULT_LIMIT)
