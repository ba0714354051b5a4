"""The writing side of an object store: whole objects, objects that must not exist yet, deletion, and the names in a folder."""

import contextlib
import dataclasses
import datetime as dt
import errno
import inspect
import time
from typing import Any

from ..errors import ConfigurationError
from ._retry import RemoteError, retried
from ._store import Store

_TIMES = ("LastModified", "mtime", "updated", "last_modified", "created")  # what stores call the time of the last change

_DECIDING = {"s3", "s3a", "gs", "gcs", "memory"}  # kinds of stores that can write an object only if there is none
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)  # of a condition that a server rejects
_SETTLING_SECONDS = 1.0  # in which requests of several writers have come, where the store does not decide


@dataclasses.dataclass(frozen=True)
class Entry:
    """A name in a folder: its last part, whether it is a folder, its size in bytes, and when it was changed (None if unknown)."""

    name: str
    is_folder: bool
    size: int
    changed: float | None


class WritableStore(Store):
    """An object, or a folder of objects, at a URL, with requests that change it. An object appears whole or not at all.

    Raises:
        ConfigurationError: If the URL has "::", which would mean another object.
    """

    def __init__(self, url: str) -> None:
        if "::" in url:
            raise ConfigurationError(f"{url!r} has '::', with which fsspec chains several file systems. Choose a name without it.")
        super().__init__(url)

    def put(self, data: bytes) -> None:
        """Make this the contents of the object.

        Raises:
            RemoteError: If the store does not confirm it. The object may have the new contents nevertheless.
        """
        retried("write", self.url, lambda seconds: self._once("pipe_file", self._path, seconds, data), num_bytes=len(data))

    def refuses_a_second(self, data: bytes) -> bool:
        """Return whether the store refuses to create this object, which exists, with these contents. Otherwise it has them now.

        Only a store that says so can decide which of two writers is the first. S3, Google's store and fsspec's memory have such a
        request, but servers and libraries before them may ignore or reject its condition. What other file systems call so looks
        for the object first, and then writes.

        Raises:
            RemoteError: If the store does not answer.
        """

        def once(seconds: float) -> bool:
            try:
                self._once("pipe_file", self._path, seconds, data, mode="create")
            except Exception as error:
                if _is_refusal(error):
                    return True
                if _is_unsupported(error):
                    return False
                raise
            return False

        return self._has_such_a_request and retried("write", self.url, once, num_bytes=len(data))

    @property
    def _has_such_a_request(self) -> bool:
        protocol = self._system.protocol
        method = getattr(self._system, "_pipe_file" if self._system.async_impl else "pipe_file")
        names = {protocol} if isinstance(protocol, str) else set(protocol)
        return bool(names & _DECIDING) and "mode" in inspect.signature(method).parameters

    def put_if_absent(self, data: bytes, *, store_decides: bool) -> bool:
        """Make this the contents of the object if there is none, and return whether they are its contents now.

        Args:
            data: The contents, which differ from those of all other writers.
            store_decides: Whether the store refuses a second one (``refuses_a_second``). Otherwise the object is looked for first,
                and compared a second after it was written: a writer whose request takes longer can still replace it.

        Raises:
            RemoteError: If the store does not answer. The object may have these contents nevertheless.
        """
        if store_decides:
            return retried("write", self.url, lambda seconds: self._create_once(data, seconds), num_bytes=len(data))

        def once(seconds: float) -> None:
            if not self._exists_once(seconds):
                self._once("pipe_file", self._path, seconds, data)

        retried("write", self.url, once, num_bytes=len(data))
        time.sleep(_SETTLING_SECONDS)
        try:
            return self.get() == data
        except RemoteError as error:
            if is_missing(error):  # another program has removed it
                return False
            raise

    def _create_once(self, data: bytes, seconds: float) -> bool:
        try:
            self._once("pipe_file", self._path, seconds, data, mode="create")
        except Exception as error:  # noqa: BLE001 - it exists, which each store says in its own way
            # Perhaps an earlier attempt, whose answer was lost, has written it.
            try:
                return self._once("cat_file", self._path, seconds) == data
            except FileNotFoundError:
                raise error from None
        return True

    def get(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Return the contents of an object that never changes, or its bytes from ``start`` up to ``stop``.

        Raises:
            RemoteError: If there is no such object, it has fewer bytes, or the store does not answer.
        """

        def once(seconds: float) -> bytes:
            data = self._once("cat_file", self._path, seconds, start=start, end=stop)
            if start is not None and stop is not None and len(data) != stop - start:
                raise OSError(f"{len(data)} bytes came of {stop - start}, from byte {start} on")
            return data

        return retried("read", self.url, once, num_bytes=0 if start is None or stop is None else stop - start)

    def exists(self) -> bool:
        """Return whether there is an object, or a folder that is not empty.

        Raises:
            RemoteError: If the store does not answer.
        """
        return retried("look at", self.url, self._exists_once)

    def _exists_once(self, seconds: float) -> bool:
        try:
            self._once("info", self._path, seconds)
        except FileNotFoundError:
            return False
        return True

    def entry(self) -> Entry:
        """Return name, size and time of the object or folder.

        Raises:
            RemoteError: If there is none, or the store does not answer.
        """
        return _entry(self._ask("look at", "info", self._path))

    def delete(self) -> None:
        """Delete the object. Does nothing if there is none.

        Raises:
            RemoteError: If the store does not confirm it.
        """

        def once(seconds: float) -> None:
            with contextlib.suppress(FileNotFoundError):
                self._once("rm_file", self._path, seconds)

        retried("delete", self.url, once)

    def entries(self) -> list[Entry]:
        """Return what is in the folder, sorted by name; nothing if there is no such folder.

        Raises:
            RemoteError: If the store does not answer.
        """

        def once(seconds: float) -> Any:
            try:
                return self._once("ls", self._path, seconds, detail=True)
            except FileNotFoundError:
                return []

        own = self._path.strip("/")
        found = [_entry(info) for info in retried("list", self.url, once) if info["name"].strip("/") != own]
        return sorted(found, key=lambda entry: entry.name)


def _entry(info: dict[str, Any]) -> Entry:
    changed: Any = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(changed, str):
        with contextlib.suppress(ValueError):
            changed = dt.datetime.fromisoformat(changed)
    if isinstance(changed, dt.datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=dt.UTC)).timestamp()
    name = info["name"].rstrip("/").rpartition("/")[2]
    when = float(changed) if isinstance(changed, int | float) else None
    return Entry(name, info.get("type") == "directory", int(info.get("size") or 0), when)


def _is_refusal(error: Exception) -> bool:
    """Whether a store says that the object exists, in its own way: with a type, or with the code 412."""
    if isinstance(error, FileExistsError):
        return True
    for each in (error, error.__cause__):
        answer = getattr(each, "response", None)
        code = answer.get("Error", {}).get("Code") if isinstance(answer, dict) else getattr(each, "code", None)
        if code in ("PreconditionFailed", "412", 412):
            return True
    return False


def _is_unsupported(error: Exception) -> bool:
    """Whether a server or a library does not know the condition. Asked only after ``_is_refusal``."""
    is_known = not isinstance(error, OSError) or error.errno not in _UNSUPPORTED
    return isinstance(error, NotImplementedError | ValueError | TypeError) or not is_known


def is_missing(error: OSError) -> bool:
    """Return whether a request has failed because there is no such object, and not because the store does not answer."""
    return isinstance(error.__cause__ if isinstance(error, RemoteError) else error, FileNotFoundError)
