"""An object at a URL: its size and identity, ranges of its bytes, and the names that match a pattern. The work is fsspec's."""

import dataclasses
import datetime as dt
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any, cast

from ..errors import ConfigurationError
from ._counts import current_counts
from ._lasting import let_outlast
from ._retry import ChangedError, RemoteError, Started, limited, retried

# What stores call the thing that changes with the contents, the best first; times are the last resort.
_MARKS = (
    "ETag",
    "etag",
    "version_id",
    "generation",
    "md5Hash",
    "content_md5",
    "sha256",
    "blob_id",
    "checksum",
    "Content-MD5",
    "Digest",
)
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created", "Last-Modified")
_NO_IDENTITY = "without ETag or time"
_ASKED_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class Facts:
    """The size of an object in bytes, and a text that is another one once the contents are."""

    size: int
    identity: str

    @property
    def is_exact(self) -> bool:
        """Whether the identity is more than the size once more."""
        return self.identity != _NO_IDENTITY

    @property
    def has_etag(self) -> bool:
        """Whether the identity is an ETag, which an answer with bytes names too."""
        return self.identity.startswith("ETag ")

    def __str__(self) -> str:
        return f"{self.size} bytes, {self.identity}"


class Store:
    """An object at a URL. Nothing is asked before a method is called.

    Raises:
        ConfigurationError: If fsspec or the package for this kind of store is not installed, or there is no such kind.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.counts = current_counts()
        self._system, self._path = retried(
            "connect to", url, lambda seconds: limited(lambda: _resolved(url), seconds), counts=self.counts
        )
        if self._system.async_impl:
            let_outlast(self._system.loop)

    def facts(self) -> Facts:
        """Return the size and identity that the object has now.

        Raises:
            RemoteError: If there is no such object, or the store does not answer.
        """
        return self._facts_from(self._ask("look at", "info", self._path))

    def _facts_from(self, info: Mapping[str, Any]) -> Facts:
        size = info.get("size")
        if info.get("type") == "directory" or size is None:
            raise RemoteError(f"could not read {self.url}: it is {'a folder' if size is not None else 'of unknown size'}")
        return Facts(int(size), _identity(info))

    def read(self, start: int, stop: int, facts: Facts, unwanted: threading.Event | None = None) -> bytes:
        """Return the bytes from ``start`` up to ``stop`` of the object that has these facts. Do not go on once they are unwanted.

        Raises:
            RemoteError: If the store does not answer, or always with fewer bytes, or the object is another one now.
        """

        def once(seconds: float) -> bytes:
            problem: Exception | None = None
            data = b""
            try:
                data, identity = self._range_once(start, stop, seconds)
                self.counts.add("store_bytes", len(data))
                if len(data) != stop - start:
                    problem = OSError(f"{len(data)} bytes came of {stop - start}, from byte {start} on")
                elif identity == facts.identity:
                    return data
                elif identity is not None and facts.has_etag:
                    problem = OSError(f"bytes of another version came: {identity}")
            except TimeoutError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below, unless the object has changed
                problem = error
            # Only if it is the same object after the answer, the bytes are its bytes, and another attempt has a point.
            now = self._facts_from(self._once("info", self._path, seconds))
            if now != facts:
                raise ChangedError(f"{self.url} has changed while it was read: it was {facts}, and is now {now}")
            if problem is not None:
                raise problem
            return data

        return retried("read", self.url, once, unwanted, counts=self.counts)

    def _range_once(self, start: int, stop: int, seconds: float) -> tuple[bytes, str | None]:
        """The bytes of a range, and the identity of the object that they are of, if the store says it with them."""
        if not hasattr(self._system, "_call_s3"):
            return self._once("cat_file", self._path, seconds, start=start, end=stop), None
        from fsspec.asyn import sync

        return cast(tuple[bytes, str | None], sync(self._system.loop, self._range_of_s3, start, stop, timeout=seconds))

    async def _range_of_s3(self, start: int, stop: int) -> tuple[bytes, str | None]:
        bucket, key, version = self._system.split_path(self._path)
        arguments = {"Bucket": bucket, "Key": key, "Range": f"bytes={start}-{stop - 1}"}
        answer = await self._system._call_s3("get_object", **arguments, **({"VersionId": version} if version else {}))  # noqa: SLF001
        try:
            etag = answer.get("ETag")
            return await answer["Body"].read(), _identity({"ETag": etag}) if etag else None
        finally:
            answer["Body"].close()

    def matches(self) -> list[str]:
        """Return the URLs that match this one as a pattern, sorted. ``*`` matches within one folder, and no hidden names.

        Raises:
            RemoteError: If the store does not answer.
        """
        pattern = re.sub(r"\*\*+", "*", self._path)
        names = self._ask("list", "glob", pattern)
        scheme, _, rest = self.url.partition("://")
        rooted = rest.startswith("/") or scheme in {"file", "local"}  # names of files on this machine are absolute
        depth = pattern.strip("/").count("/")
        found = [name for name in names if name.strip("/").count("/") == depth and not _is_hidden(name, pattern)]
        return sorted(name if "://" in name else f"{scheme}://{'/' * rooted}{name.lstrip('/')}" for name in found)

    def _ask(self, what: str, method: str, path: str) -> Any:
        return retried(what, self.url, lambda seconds: self._once(method, path, seconds), counts=self.counts)

    def _once(self, method: str, path: str, seconds: float, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the file system, which does not take longer than this."""
        if not self._system.async_impl:
            return limited(lambda: getattr(self._system, method)(path, *args, **kwargs), seconds)
        from fsspec.asyn import sync

        return sync(self._system.loop, getattr(self._system, f"_{method}"), path, *args, timeout=seconds, **kwargs)


def _resolved(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConfigurationError(
            f"{url} is read with fsspec, which is not installed: pip install 'replicant-jax[remote]' (or 'replicant-jax[s3]' for s3://)."
        ) from error
    try:
        return url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        extra = "pip install 'replicant-jax[s3]'" if url.startswith(("s3://", "s3a://")) else "install the package that it names"
        raise ConfigurationError(f"{url} needs another package ({error}): {extra}.") from error
    except ValueError as error:
        raise ConfigurationError(f"{url} is not a URL that fsspec can read ({error}). Write s3://bucket/name, say.") from error


def _identity(info: Mapping[str, Any]) -> str:
    for names in (_MARKS, _TIMES):
        for name in names:
            value = info.get(name)
            if isinstance(value, dt.datetime):
                value = value.isoformat()
            if value:
                return f"{name} {str(value).strip(chr(34))}"
    return _NO_IDENTITY


def _is_hidden(name: str, pattern: str) -> bool:
    """Whether a part of the name begins with a dot where the pattern does not."""
    parts = zip(name.strip("/").split("/"), pattern.strip("/").split("/"), strict=True)
    return any(part.startswith(".") and not asked.startswith(".") for part, asked in parts)


def facts_of(urls: Iterable[str]) -> list[Facts | None]:
    """Return the facts of several objects, which are asked for at once; None for those that cannot be read."""
    found: list[Facts | None] = []
    waiting: list[Started] = []
    for url in urls:
        if len(waiting) == _ASKED_AT_ONCE:
            found.append(waiting.pop(0).result())
        waiting.append(Started(lambda url=url: _facts_or_none(url)))
    return found + [each.result() for each in waiting]


def _facts_or_none(url: str) -> Facts | None:
    try:
        return Store(url).facts()
    except RemoteError as error:
        if isinstance(error.__cause__, FileNotFoundError | PermissionError | IsADirectoryError) or error.__cause__ is None:
            return None
        raise
