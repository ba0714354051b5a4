"""An open file on an object store: aligned blocks, the next of which are already on their way."""

import threading
from typing import Any

from ._cache import block_cache
from ._retry import Started
from ._seekable import Seekable
from ._store import Facts, Store

BLOCK = 4 << 20  # bytes of one request
AHEAD = 3  # blocks that are read before they are asked for; so a file takes at most 16 MiB


class RemoteFile(Seekable):
    """Reads an object like a file that is open for reading. Reading in order makes it read ahead; other reads do not.

    The object must stay the same while it is read.

    Raises:
        RemoteError: If it cannot be read, has changed, or the store does not answer within the deadline.
        ConfigurationError: If a package is missing.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._blocks: dict[int, Started] = {}
        self._unwanted = threading.Event()  # set once nobody waits for these blocks any more
        self.store = Store(url)
        self.facts = self.store.facts()
        self._in_order = 0  # blocks that were read one after the other
        self._last: int | None = None

    @property
    def _size(self) -> int:
        return self.facts.size

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        number, start = divmod(self._at, BLOCK)
        if self._at >= self.facts.size or not len(view):
            return 0
        data = self._block(number)
        count = min(len(view), len(data) - start)
        view[:count] = data[start : start + count]
        self._at += count
        return count

    def close(self) -> None:
        self._leave_blocks()
        super().close()

    def _leave_blocks(self) -> None:
        self._blocks = {}
        self._unwanted.set()
        self._unwanted = threading.Event()

    def _block(self, number: int) -> bytes:
        if number != self._last:
            self._in_order = self._in_order + 1 if self._last is not None and number == self._last + 1 else 0
            self._last = number
        last = (self.facts.size - 1) // BLOCK
        if (begun := self._blocks.get(number)) is not None and begun.has_failed:  # before anybody needed it
            self._leave_blocks()
        wanted = range(number, min(number + min(self._in_order, AHEAD), last) + 1)
        self._blocks = {each: self._blocks.get(each) or self._begin(each) for each in wanted}
        try:
            return self._blocks[number].result()
        except BaseException:
            self._leave_blocks()  # so that reading again asks again
            raise

    def _begin(self, number: int) -> Started:
        store, facts, unwanted = self.store, self.facts, self._unwanted
        start, stop = number * BLOCK, min((number + 1) * BLOCK, facts.size)
        return Started(lambda: read_range(store, facts, start, stop, unwanted))


def read_range(store: Store, facts: Facts, start: int, stop: int, unwanted: threading.Event | None = None) -> bytes:
    """Return bytes of an object that has these facts, from the cache of this host if they are there.

    Once they are ``unwanted``, the store is not asked again.

    Raises:
        RemoteError: If they cannot be read, or the object has changed.
    """
    cache = block_cache() if facts.is_exact else None
    key = f"{store.url} {facts.identity} {facts.size} {start} {stop}"
    if cache is not None:
        data = cache.get(key, stop - start)
        store.counts.add("cache_misses" if data is None else "cache_hits")
        if data is not None:
            return data
    data = store.read(start, stop, facts, unwanted)
    if cache is not None:
        cache.put(key, data)
    return data
