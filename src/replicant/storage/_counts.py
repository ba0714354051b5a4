"""What reading files has taken: bytes, blocks that the host's cache had, and requests that were repeated."""

import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Iterator


@dataclasses.dataclass
class Counts:
    """Counters that several threads add to.

    Args:
        file_bytes: Bytes that were read from files of this machine, compressed as they are there.
        store_bytes: Bytes that came from object stores.
        cache_hits: Blocks that the cache of this host had.
        cache_misses: Blocks that it was asked for and did not have.
        retries: Requests to a store that were made again.
    """

    file_bytes: int = 0
    store_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    retries: int = 0
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, name: str, number: int = 1) -> None:
        """Add to the counter with this name."""
        with self._lock:
            setattr(self, name, getattr(self, name) + number)


_counting: contextvars.ContextVar[Counts | None] = contextvars.ContextVar("replicant_counting", default=None)


def current_counts() -> Counts:
    """Return the counters of whoever opens something now. Nobody reads them outside of `counting`."""
    return _counting.get() or Counts()


@contextlib.contextmanager
def counting(counts: Counts) -> Iterator[None]:
    """Let what is opened here add to these counters, whenever and on whichever thread it is read."""
    token = _counting.set(counts)
    try:
        yield
    finally:
        _counting.reset(token)
