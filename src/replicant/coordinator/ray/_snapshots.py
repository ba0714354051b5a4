"""The coordinator's snapshots of each server, from which it is restarted, and the count of updates lost by that."""

import threading

import numpy as np

from ..servers._placing import Shard
from ._server import News, Pulled, Snapshot


class Snapshots:
    """The last snapshot of one server. It always holds whole shards.

    Any thread may read it. One thread updates it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shards: dict[int, tuple[Shard, str]] = {}
        self._news: dict[int, News] = {}
        self._rules: dict[int, bytes] = {}
        self._books: bytes | None = None
        self._updates = 0
        self._begun: list[int] = []  # how many updates each generation started with
        self._seen: list[int] = []  # the highest number of updates that each generation is known to have made

    def add_shards(self, shards: list[tuple[Shard, str]], values: dict[int, np.ndarray]) -> None:
        """Add new shards with their initial values."""
        with self._lock:
            for shard, dtype in shards:
                if shard.index not in self._shards:
                    self._shards[shard.index] = shard, dtype
                    self._news[shard.index] = News((0, 0), None, np.array(values[shard.index]))

    def add_rule(self, number: int, blob: bytes) -> None:
        """Add an optimizer."""
        with self._lock:
            self._rules[number] = blob

    def begin(self) -> tuple[int, Snapshot]:
        """Start a new generation of the server. Returns its number and the snapshot to start with."""
        with self._lock:
            self._begun.append(self._updates)
            self._seen.append(self._updates)
            return len(self._begun) - 1, Snapshot(list(self._shards.values()), dict(self._news), dict(self._rules), self._books)

    def known(self) -> dict[int, tuple[int, int] | None]:
        """The versions of all shards, with which to pull the next snapshot."""
        with self._lock:
            return {index: news.version for index, news in self._news.items()}

    def take(self, generation: int, pulled: Pulled) -> None:
        """Update the snapshot with a pull, unless the server has been replaced since, or the snapshot is newer."""
        with self._lock:
            if generation != len(self._begun) - 1 or pulled.updates < self._updates:
                return
            for index, news in pulled.news.items():
                values = np.array(
                    news.values if news.rows is None else self._news[index].values
                )  # a copy: the original is in Ray's memory
                if news.rows is not None:
                    values[news.rows] = news.values
                self._news[index] = News(news.version, None, values)
            self._books, self._updates = pulled.books, pulled.updates
        self.see(generation, pulled.updates)

    def see(self, generation: int, updates: int) -> None:
        """Note that a generation of the server has made at least `updates` updates."""
        with self._lock:
            self._seen[generation] = max(self._seen[generation], updates)

    @property
    def is_current(self) -> bool:
        """Whether the server is not known to have made any update since the snapshot."""
        with self._lock:
            return not self._seen or self._seen[-1] <= self._updates

    @property
    def updates(self) -> int:
        """How many updates the last snapshot contains."""
        return self._updates

    @property
    def lost_updates(self) -> int:
        """How many updates were lost with servers: those made after the snapshot that the successor started with."""
        return sum(self.lost_by(generation) for generation in range(1, len(self._begun)))

    def lost_by(self, generation: int) -> int:
        """How many updates were lost when this generation replaced the previous one."""
        with self._lock:
            return max(0, self._seen[generation - 1] - self._begun[generation])
