"""A process's copies of variables on remote servers, in place of shared memory.

A worker pulls everything it needs at once. The first read of a closure, and the first one after a push, pull the news of all shards
that this worker has ever read, from all servers at the same time. The closure's other reads use that, but a shard that is read a
second time is pulled again. The coordinator pulls at every read.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import LostProcessError
from ..servers._placing import Shard
from ..wire._memory import aligned
from ._server import News, Pulled

_PULL_SECONDS = 120.0
_REPLACE_SECONDS = 300.0  # how long to wait for a new server


class Gone(Exception):
    """The server that was asked is lost."""


class Mirrors:
    """The copies of all servers' variables.

    Args:
        num_servers: how many servers there are.
        ask: ``ask(server's handle, method, argument)`` starts a call. It returns ``wait(seconds)``, which returns the answer or
            raises Gone or TimeoutError.
        see: is called with a server's number, its generation, and how many updates it has made.
        is_worker: whether reads may use the last pull.
    """

    def __init__(
        self,
        num_servers: int,
        ask: Callable[[Any, str, Any], Callable[[float], Any]],
        see: Callable[[int, int, int], None],
        *,
        is_worker: bool,
    ):
        self.memories = [MirrorMemory(self, server) for server in range(num_servers)]
        self.is_worker = is_worker
        self.see = see
        self._ask = ask
        self._lock = threading.RLock()  # guards the copies
        self._changed = threading.Condition()
        self._handles: dict[int, tuple[int, Any]] = {}

    def connect(self, server: int, generation: int, handle: Any) -> None:
        """Use this server, unless a newer generation of it is known."""
        with self._changed:
            if self._handles.get(server, (-1, None))[0] < generation:
                self._handles[server] = generation, handle
                self._changed.notify_all()

    def begin(self) -> None:
        """Start a closure: it uses nothing that the previous one has read."""
        for memory in self.memories:
            memory.forget()

    def pull(self, server: int, index: int) -> None:
        """Bring a shard up to date, and on a worker all shards that it has read before."""
        with self._lock:
            if not self.is_worker:
                self._pull({server: {index}})
                return
            wanted = {memory.server: set(memory.copies) for memory in self.memories if memory.copies}
            wanted.setdefault(server, set()).add(index)
            self._pull(wanted)
            for memory in self.memories:
                memory.fresh = wanted.get(memory.server, set())

    def counts(self, server: int) -> tuple[int, int, int, np.ndarray]:
        """What the server's ledger counts."""
        return self._answers({server: lambda _: ("counts", None)})[server][1]

    def _pull(self, wanted: dict[int, set[int]]) -> None:
        def request(server: int, indices: set[int]) -> Callable[[int], tuple[str, Any]]:
            return lambda generation: ("pull", self.memories[server].known(generation, indices))

        answers = self._answers({server: request(server, indices) for server, indices in wanted.items()})
        for server, (generation, pulled) in answers.items():
            self.memories[server].take(generation, pulled)
            self.see(server, generation, pulled.updates)

    def _answers(self, requests: dict[int, Callable[[int], tuple[str, Any]]]) -> dict[int, tuple[int, Any]]:
        """Ask servers, and their successors if they are lost. Returns the generation that answered, and its answer."""
        asked = {server: self._send(server, request) for server, request in requests.items()}
        answers = {}
        for server, request in requests.items():
            generation, wait = asked[server]
            deadline = time.monotonic() + _REPLACE_SECONDS
            while server not in answers:
                try:
                    answers[server] = generation, wait(_PULL_SECONDS)
                except TimeoutError:
                    raise LostProcessError(
                        f"Server {server} did not answer within {_PULL_SECONDS:.0f} s while its variables were read. Check whether "
                        "it has been stopped."
                    ) from None
                except Gone:
                    self._await(server, generation, deadline)
                    generation, wait = self._send(server, request)
        return answers

    def _send(self, server: int, request: Callable[[int], tuple[str, Any]]) -> tuple[int, Callable[[float], Any]]:
        self._await(server, -1, time.monotonic() + _REPLACE_SECONDS)
        generation, handle = self._handles[server]
        return generation, self._ask(handle, *request(generation))

    def _await(self, server: int, generation: int, deadline: float) -> None:
        def is_there() -> bool:
            return self._handles.get(server, (-1, None))[0] > generation

        with self._changed:
            if not self._changed.wait_for(is_there, max(0.0, deadline - time.monotonic())):
                raise LostProcessError(f"Server {server} was lost and not replaced within {_REPLACE_SECONDS:.0f} s.")


class MirrorMemory:
    """Stands in for `ServerMemory`. Its `copies` are the views that have been read, by the index of their shard."""

    def __init__(self, mirrors: Mirrors, server: int):
        self.mirrors, self.server = mirrors, server
        self.copies: dict[int, MirrorView] = {}
        self.fresh: set[int] = set()  # shards of the last pull that have not been read since
        self.looked: set[int] = set()  # shards that are up to date because their version was asked for
        self.updates = 0
        self.seen: int | None = None  # the number of updates at the first pull since the last push
        self.ledger = MirrorLedger(self)
        self.values = self.saved = _NoMemory()
        self.count_lost: Callable[[], int] = int
        self._views: dict[int, MirrorView] = {}

    @property
    def lost_updates(self) -> int:
        """How many updates were lost together with servers."""
        return self.count_lost()

    def view(self, shard: Shard, dtype: np.dtype) -> "MirrorView":
        """The copy of a shard."""
        if shard.index not in self._views:
            self._views[shard.index] = MirrorView(self, shard, np.dtype(dtype))
        return self._views[shard.index]

    def forget(self, *, updates: int | None = None) -> None:
        """Pull again at the next read. `updates`: how many the server has made, as it reported after a push."""
        self.fresh, self.looked, self.seen = set(), set(), None
        self.updates = self.updates if updates is None else updates

    def known(self, generation: int, indices: set[int]) -> dict[int, tuple[int, int] | None]:
        """The versions of copies, as that generation of the server counts them."""
        return {index: self._views[index].known_of(generation) for index in indices}

    def take(self, generation: int, pulled: Pulled) -> None:
        """Update the copies with the answer to a pull."""
        self.updates = pulled.updates
        if self.seen is None:
            self.seen = pulled.updates
        for index, news in pulled.news.items():
            self._views[index].take(generation, news)

    def duplicate(self) -> "MirrorMemory":
        """Return itself: threads share it."""
        return self

    def close(self) -> None:
        """Do nothing: nothing is open."""


class MirrorView:
    """The copy of one shard. Stands in for `ShardView`."""

    def __init__(self, memory: MirrorMemory, shard: Shard, dtype: np.dtype):
        self.shard = shard
        self._known: tuple[int, int] | None = None
        self._memory = memory
        self._generation = -1
        self._array = aligned(shard.shape, dtype)
        self.buffers = [self._array, self._array]

    @property
    def version(self) -> tuple[int, ...]:
        """Changes with every update, and with every new server."""
        self._refresh()
        self._memory.looked.add(self.shard.index)
        return (self._generation, *(self._known or (0, 0)))

    @property
    def current(self) -> np.ndarray:
        """The copy, brought up to date."""
        self._refresh()
        return self._array

    def read_into(self, out: np.ndarray) -> tuple[int, ...]:
        """Copy the value to `out`. Returns its version."""
        memory, index = self._memory, self.shard.index
        if index in memory.looked and memory.mirrors.is_worker:
            memory.looked.discard(index)
        else:
            self._refresh()
        np.copyto(out, self._array)
        return (self._generation, *(self._known or (0, 0)))

    def take(self, generation: int, news: News) -> None:
        """Update the copy."""
        if news.rows is None:
            np.copyto(self._array, news.values)
        else:
            self._array[news.rows] = news.values
        self._generation, self._known = generation, news.version

    def known_of(self, generation: int) -> tuple[int, int] | None:
        """The copy's version, if it comes from this generation of the server; otherwise None."""
        return self._known if generation == self._generation else None

    def _refresh(self) -> None:
        memory, index = self._memory, self.shard.index
        memory.copies[index] = self
        if index not in memory.fresh:
            memory.mirrors.pull(memory.server, index)
        memory.fresh.discard(index)


class MirrorLedger:
    """The parts of a server's ledger that other processes read."""

    def __init__(self, memory: MirrorMemory):
        self._memory = memory

    @property
    def updates(self) -> int:
        """How many updates the server has made; on a worker, as of its last pull."""
        return self._memory.updates if self._memory.mirrors.is_worker else self._counts()[0]

    @property
    def duplicates(self) -> int:
        """How many pushes were skipped because they had already been applied."""
        return self._counts()[1]

    @property
    def pushed_bytes(self) -> int:
        """The number of bytes in all pushes."""
        return self._counts()[2]

    @property
    def staleness(self) -> np.ndarray:
        """How many pushes arrived 0, 1, 2, ... updates late."""
        return self._counts()[3]

    def _counts(self) -> tuple[int, int, int, np.ndarray]:
        return self._memory.mirrors.counts(self._memory.server)


class _NoMemory:
    fd = -1

    def grow(self, nbytes: int) -> None:
        """Do nothing: the server grows its own memory."""
