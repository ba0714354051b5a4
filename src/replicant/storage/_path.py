"""The URL of a file or folder on an object store, with the methods of `pathlib.Path` that checkpoints use."""

from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from ._retry import Started
from ._seekable import Seekable
from ._upload import Upload
from ._write import Entry, WritableStore

WINDOW = 1 << 20  # bytes that are read at least, so that small arrays side by side take one request
_PIECE = 16 << 20  # bytes of one request
_AT_ONCE = 4  # requests for one large array


class Stat(NamedTuple):
    """What is known about a file: its size in bytes, and when it was changed, in seconds since 1970 (0 if unknown)."""

    st_size: int
    st_mtime: float


class RemotePath:
    """A URL that is used as `pathlib.Path` is. Two are equal if their texts are.

    Its methods raise a RemoteError if the store does not answer, and a ConfigurationError if a package for it is missing.
    """

    def __init__(self, url: str) -> None:
        scheme, colon, rest = url.partition("://")
        self.url = f"{scheme}{colon}{rest.rstrip('/')}"

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemotePath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __lt__(self, other: "RemotePath") -> bool:
        return self.url < other.url

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.partition("://")[2].rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        """The folder that it is in, and that of a bucket is the bucket."""
        scheme, _, rest = self.url.partition("://")
        return RemotePath(f"{scheme}://{rest.rpartition('/')[0]}") if "/" in rest else self

    def with_name(self, name: str) -> "RemotePath":
        """Return the file or folder with this name beside it."""
        return self.parent / name

    @property
    def store(self) -> WritableStore:
        """The requests about it."""
        return WritableStore(self.url)

    def exists(self) -> bool:
        """Return whether there is an object, or a folder that is not empty."""
        return self.store.exists()

    def is_dir(self) -> bool:
        """Return whether there is anything in the folder."""
        return bool(self.store.entries())

    def entries(self) -> list[Entry]:
        """Return what is in the folder, with sizes and times."""
        return self.store.entries()

    def iterdir(self) -> Iterator["RemotePath"]:
        """Yield what is in the folder; nothing if there is none."""
        return (self / entry.name for entry in self.entries())

    def stat(self) -> Stat:
        """Return size and time of an object; those of a folder are 0 and the newest time in it."""
        own = self.store.entry()
        times = [entry.changed or 0.0 for entry in ([own, *self.entries()] if own.is_folder else [own])]
        return Stat(own.size, max(times))

    def unlink(self) -> None:
        """Delete the object, if there is one."""
        self.store.delete()

    def upload(self) -> Upload:
        """Return the object, to be written."""
        return Upload(self.url)

    def open_to_read(self) -> "RangeReader":
        """Return the object, to be read in ranges."""
        return RangeReader(self.store)


class RangeReader(Seekable):
    """Reads ranges of an object that does not change. Only what is asked for is read, but at least `WINDOW` bytes at once."""

    def __init__(self, store: WritableStore, size: int | None = None) -> None:
        super().__init__()
        self.size = store.facts().size if size is None else size
        self._store = store
        self._start, self._window = 0, b""

    def another(self) -> "RangeReader":
        """Return a reader of the same object with a position of its own, which takes no request."""
        return RangeReader(self._store, self.size)

    @property
    def _size(self) -> int:
        return self.size

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, as far as the object goes."""
        view = memoryview(buffer).cast("B")
        if len(view) <= _PIECE:
            data = self.read(len(view))
            view[: len(data)] = data
            return len(data)
        end = min(self._at + len(view), self.size)
        starts, waiting, done = deque(range(self._at, end, _PIECE)), deque[Started](), 0
        while starts or waiting:
            while starts and len(waiting) < _AT_ONCE:
                start = starts.popleft()
                waiting.append(Started(partial(self._store.get, start, min(start + _PIECE, end))))
            data = waiting.popleft().result()
            view[done : done + len(data)] = data
            done += len(data)
        self._at = end
        return done

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, or fewer at the end of the object."""
        start = min(self._at, self.size)
        stop = self.size if size < 0 else min(start + size, self.size)
        if start < self._start or stop > self._start + len(self._window):
            until = min(max(stop, start + WINDOW), self.size)
            self._start, self._window = start, self._store.get(start, until) if until > start else b""
        self._at = stop
        data = self._window[start - self._start : stop - self._start]
        if stop - start >= WINDOW:
            self._window = b""  # large ranges are not read twice
        return data
