"""What a server does in its actor: applies pushes, reports changes, restores a snapshot. Nothing here depends on Ray."""

import collections
import pickle
from typing import Any, NamedTuple

import numpy as np

from ..servers._apply import Applier
from ..servers._ledger import NBYTES
from ..servers._placing import Shard
from ..servers._push import Push
from ..servers._store import ServerMemory
from ..wire._errors import pack_error
from ..wire._memory import pages


class News(NamedTuple):
    """What has changed in one shard: the new `values` of `rows`, or of all rows if that is None, as of `version`."""

    version: tuple[int, int]
    rows: Any
    values: np.ndarray


class Pulled(NamedTuple):
    """The answer to a pull: how many updates the server has made, the news by shard, and the whole ledger if requested."""

    updates: int
    news: dict[int, News]
    books: bytes | None = None


class Snapshot(NamedTuple):
    """The state of a server at one moment.

    Attributes:
        shards: each shard with its dtype.
        news: their values.
        rules: the optimizers, by number.
        books: the ledger; None if no snapshot has been taken yet.
    """

    shards: list[tuple[Shard, str]]
    news: dict[int, News]
    rules: dict[int, bytes]
    books: bytes | None


class _Changes:
    """Which rows of a shard changed when, as far back as those are at most half of the shard."""

    def __init__(self, num_rows: int):
        self._num_rows = num_rows
        self._noted: collections.deque[tuple[int, np.ndarray]] = collections.deque()
        self._size = 0
        self.since = (0, 0)  # every change after this version is noted

    def note(self, version: tuple[int, int], rows: np.ndarray) -> None:
        self._noted.append((version[1], np.array(rows)))
        self._size += rows.size
        while self._size > self._num_rows // 2:
            at, gone = self._noted.popleft()
            self._size -= gone.size
            self.since = (version[0], at)

    def forget(self, version: tuple[int, int]) -> None:
        self._noted.clear()
        self._size, self.since = 0, version

    def after(self, version: tuple[int, int]) -> np.ndarray | None:
        """The rows that have changed since `version`; None if that is no longer known."""
        if version[0] != self.since[0] or version[1] < self.since[1]:
            return None
        found = [rows for at, rows in self._noted if at > version[1]]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


class ServerState:
    """A server's memory and ledger, in its own process.

    Args:
        number: the server's number.
        snapshot: the state to start with.
    """

    def __init__(self, number: int, snapshot: Snapshot):
        self._number = number
        self._memory = ServerMemory.create()
        if snapshot.books is not None:
            self._memory.values.view(0, NBYTES)[:] = np.frombuffer(snapshot.books, np.uint8)
        self._applier = Applier(self._memory)
        self._changes: dict[int, _Changes] = {}
        self._dtypes: dict[int, tuple[Shard, np.dtype]] = {}
        self._add_shards(snapshot.shards, {index: news.values for index, news in snapshot.news.items()})
        self._applier.recover()
        for rule in snapshot.rules.items():
            self._add_rule(*rule)

    @property
    def updates(self) -> int:
        """How many pushes have been applied."""
        return self._memory.ledger.updates

    def ask(self, message: Any) -> tuple[Any, int]:
        """Handle a push or another message. Returns the answer that ``servers._server.Server`` gives, and the number of updates."""
        try:
            answer: Any = self._obey(message)
        except Exception as error:  # noqa: BLE001 - the sender gets whatever an optimizer raises
            answer = pack_error(error, f"server {self._number}")
        return answer, self.updates

    def pull(self, known: dict[int, tuple[int, int] | None], *, books: bool = False) -> Pulled:
        """What has changed in these shards since the given versions; None means a shard that has not been pulled."""
        news = {index: found for index, version in known.items() if (found := self._news(index, version)) is not None}
        return Pulled(self.updates, news, self._memory.values.view(0, NBYTES).tobytes() if books else None)

    def counts(self) -> tuple[int, int, int, np.ndarray]:
        """The numbers of updates, skipped duplicates and pushed bytes, and the staleness of pushes."""
        ledger = self._memory.ledger
        return ledger.updates, ledger.duplicates, ledger.pushed_bytes, ledger.staleness.copy()

    def _obey(self, message: Any) -> bool:
        if isinstance(message, Push):
            applied = self._applier.apply(message, message.operations)
            if applied:
                self._note_rows(message)
            return applied
        what, *rest = message
        if what == "shards":
            self._add_shards(*rest)
        elif what == "rule":
            self._add_rule(*rest)
        return True

    def _note_rows(self, push: Push) -> None:
        for operation in push.operations:
            for change in operation.changes:
                if change.rows is None:
                    continue
                slots = self._applier.rules[operation.rule].slots(change.shard) if operation.kind == "apply" else []
                for index in (change.shard, *slots):
                    self._changes[index].note(self._version(index), change.rows)

    def _version(self, index: int) -> tuple[int, int]:
        ledger = self._memory.ledger
        return int(ledger.done[index]), int(ledger.in_place[index])

    def _news(self, index: int, known: tuple[int, int] | None) -> News | None:
        version = self._version(index)
        if known == version:
            return None
        value = self._memory.view(*self._dtypes[index]).current
        changes = self._changes[index]
        if changes.since[0] != version[0]:
            changes.forget(version)
        rows = None if known is None or known[0] != version[0] else changes.after(known)
        return News(version, rows, value.copy() if rows is None else value[rows])

    def _add_shards(self, shards: list[tuple[Shard, str]], values: dict[int, np.ndarray]) -> None:
        """Add new shards with their values. Known shards stay as they are, since messages may come twice."""
        for shard, name in shards:
            if shard.index in self._dtypes:
                continue
            dtype = np.dtype(name)
            nbytes = int(np.prod(shard.shape, dtype=np.int64)) * dtype.itemsize
            self._memory.values.grow(shard.offset + 2 * pages(nbytes))
            self._dtypes[shard.index] = shard, dtype
            np.copyto(self._memory.view(shard, dtype).current, values[shard.index])
            self._applier.add_shard(shard, dtype)
            self._changes[shard.index] = _Changes(shard.shape[0] if shard.shape else 0)
            self._changes[shard.index].forget(self._version(shard.index))

    def _add_rule(self, number: int, blob: bytes) -> None:
        make, args = pickle.loads(blob)  # noqa: S301 - from the coordinator, which started this actor
        self._applier.rules[number] = make(*args, self._number)
