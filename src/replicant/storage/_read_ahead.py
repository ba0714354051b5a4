"""An open file on an object store: aligned blocks, the next of which are already on their way."""

import io
import threading
from typing import Any

from ._cache import block_cache
from ._retry import Started
from ._store import Facts, Store

BLOCK = 4 << 20  # bytes of one request
AHEAD = 3  # blocks that are read before they are asked for; so a file takes at most 16 MiB


class RemoteFile(io.RawIOBase):
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
        self._at = 0
        self._in_order = 0  # blocks that were read one after the other
        self._last: int | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.facts.size}[whence]
        self._at = max(0, base + offset)
        return self._at

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
        wanted = range(number, min(number + min(self._in_order, AHEAD), last) + 1)
        self._blocks = {each: self._blocks.get(each) or self._begin(each) for each in wanted}
        try:
            return self._blocks[number].result()
        except BaseException:
            self._leave_blocks()  # so that reading again asks again
            raise

    def _begin(self, number: int) -> Started:
        store, facts, unwanted = self.store, self.facts, self._unwanted
        return Started(lambda: read_block(store, facts, number, unwanted))


def read_block(store: Store, facts: Facts, number: int, unwanted: threading.Event | None = None) -> bytes:
    """Return a block of an object that has these facts, from the cache of this host if there is one.

    Once it is ``unwanted``, the store is not asked again.

    Raises:
        RemoteError: If it cannot be read, or the object has changed.
    """
    start, stop = number * BLOCK, min((number + 1) * BLOCK, facts.size)
    cache = block_cache() if facts.is_exact else None
    key = f"{store.url} {facts.identity} {facts.size} {start} {stop}"
    if cache is not None and (data := cache.get(key, stop - start)) is not None:
        return data
    data = store.read(start, stop, facts, unwanted)
    if cache is not None:
        cache.put(key, data)
    return data
