"""The client: how a process reads the servers' variables and pushes changes to them."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import LostProcessError, VariableError
from ..wire._channel import Channel, Closed
from ..wire._errors import unpack_error
from ..wire._memory import aligned
from . import _store
from ._intent import Intent, Unfinished
from ._ledger import PushName
from ._push import Change, Operation, Outbox, Push, num_bytes, pack
from ._store import ServerMemory, VariableSpec

NO_CLOSURE = 1 << 62  # stands for a closure in the coordinator's own changes
_ANSWER_SECONDS = 240.0  # long enough to replace a server, or for its first push to compile the update


@dataclasses.dataclass
class Link:
    """The link to one server. `generation` is how many times that server has been replaced."""

    channel: Channel
    outbox: Outbox
    generation: int = 0

    def send(self, message: Any) -> None:
        """Send a message, which will be answered."""
        self.channel.send(message, seconds=_ANSWER_SECONDS)

    def settle(self, doing: str) -> None:
        """Receive answers that nobody waited for any more, so that the next answer belongs to the next message.

        The outbox must not be written to before.
        """
        while self.channel.num_sent > self.channel.num_received:
            self.channel.receive(_ANSWER_SECONDS, doing)


@dataclasses.dataclass
class Work:
    """The closure that pushes.

    Attributes:
        closure: its number + 1. The coordinator's own changes belong to a closure that never ends.
        done: how many of its pushes an earlier attempt has already made.
        applied: whether a push of this attempt was applied.
        repeated: whether a push of this attempt was skipped because an earlier attempt had made it.
    """

    closure: int = NO_CLOSURE
    attempt: int = 0
    low_water: int = 0
    sequence: int = 0
    done: int = 0
    applied: bool = False
    repeated: bool = False

    @property
    def is_mixed(self) -> bool:
        """Whether its changes come from several attempts."""
        return self.applied and self.repeated


class Client:
    """One process's access to all servers.

    Args:
        number: the client's number; 0 is the coordinator.
        memories: the servers' memories.
        replaced: is called with a lost server's number and generation, and returns once there is a link to its successor.
    """

    def __init__(self, number: int, memories: Sequence[ServerMemory], replaced: Callable[[int, int], None]):
        self.number = number
        self.memories = list(memories)
        self.links: list[Link] = []
        self.work = Work()
        self.lock = threading.RLock()
        self.seen: list[int] | None = None  # each server's number of updates at the first read since the last push
        self.holds = False  # whether `end` returns changes instead of pushing them
        self.pulled_bytes = 0
        self.pushed_bytes = 0
        self.intent: Intent | None = None
        self._replaced = replaced
        self._batch: list[list[Operation]] = [[] for _ in memories]

    # Reading

    def version(self, spec: VariableSpec) -> tuple[Any, ...]:
        """A value that changes with every update of the variable."""
        return _store.version(spec, self.memories)

    def read(self, spec: VariableSpec, make: Callable[[tuple[int, ...], Any], np.ndarray] = aligned) -> np.ndarray:
        """Copy the variable's value into an array that `make` returns for its shape and dtype."""
        self.note_read()
        self.pulled_bytes += spec.nbytes
        return _store.read(spec, self.memories, make)

    def view(self, spec: VariableSpec, position: int) -> Any:
        """The buffers of the shard at `position`, without a copy."""
        shard = spec.shards[position]
        return self.memories[shard.server].view(shard, spec.dtype)

    def note_read(self) -> None:
        """Remember how many updates the servers had made at this read."""
        if self.seen is None:
            self.seen = [memory.ledger.updates for memory in self.memories]

    # Writing

    def change(
        self,
        spec: VariableSpec,
        kind: str,
        values: np.ndarray,
        rows: np.ndarray | None = None,
        *,
        share: str | None = None,
        **rule: Any,
    ) -> None:
        """Note a change of a variable, which the next `flush` pushes. The arguments are those of Operation and Change."""
        for server, part in split(spec, values, rows):
            self._add(server, kind, part if share is None else part._replace(share=share), rule)

    def _add(self, server: int, kind: str, change: Change, rule: dict[str, Any]) -> None:
        operations = self._batch[server]
        last = operations[-1] if operations else None
        if last is not None and last.kind == kind == "apply" and last.rule == rule["rule"] and last.step == rule["step"]:
            last.changes.append(change)
        else:
            operations.append(Operation(kind, [change], **rule))

    def flush(self) -> None:
        """Push all noted changes, to all servers at once, and wait until they have been applied."""
        if not any(self._batch):
            return
        if self.holds:
            raise VariableError(
                "A variable was read after another was changed, in a closure of a synchronous ClusterCoordinator. All closures of "
                "a round make their changes together, when they have ended. Read first, or do both in one replicant.function."
            )
        with self.lock:
            self.push(self._taken())

    def end(self) -> list[list[Operation]] | None:
        """End a closure: push its changes. If changes are held, return them instead, by server."""
        if self.holds:
            return self._taken()
        self.flush()
        return None

    def _taken(self) -> list[list[Operation]]:
        batch, self._batch = self._batch, [[] for _ in self.memories]
        return batch

    def push(self, batch: list[list[Operation]]) -> None:
        """Push operations, by server, and wait until they have been applied."""
        with self.lock:
            self.work.sequence += 1
            work, seen = self.work, self.seen or [memory.ledger.updates for memory in self.memories]
            self.seen = None
            if work.sequence <= work.done:
                work.repeated = True
                return
            name, is_repeated = PushName(self.number, work.closure, work.sequence), work.attempt > 0

            def make(server: int, link: Link) -> Push:
                operations = pack(batch[server], link.outbox)
                return Push(name, work.attempt, work.low_water, seen[server], link.outbox.nbytes, operations)

            self.pushed_bytes += sum(map(num_bytes, batch))
            answers = self._ask([i for i, operations in enumerate(batch) if operations], make, "applying a push", is_push=True)
            work.applied |= any(answers)
            work.repeated |= is_repeated and not all(answers)

    def finish(self, unfinished: Unfinished) -> None:
        """Complete the push that an earlier attempt started. This attempt then skips the pushes that were already made."""
        if unfinished.batch is not None:
            self.work.sequence = unfinished.sequence - 1
            self.push([unfinished.batch.get(server, []) for server in range(len(self.memories))])
        self.work = dataclasses.replace(self.work, sequence=0, done=unfinished.sequence, applied=False, repeated=False)

    def drop(self) -> None:
        """Forget noted changes that have not been pushed."""
        self._batch = [[] for _ in self.memories]

    def tell(self, message: Any, servers: Sequence[int] | None = None) -> None:
        """Send a message to servers, by default to all, and wait for the answers."""
        with self.lock:
            self._ask(
                range(len(self.links)) if servers is None else servers,
                lambda *_: message,
                "taking a message",
            )

    def _ask(self, servers: Sequence[int], make: Callable[[int, Link], Any], doing: str, *, is_push: bool = False) -> list[Any]:
        asked = {server: self.links[server] for server in servers}  # others may be replaced while one is waited for
        messages = {}
        for server, link in asked.items():
            with contextlib.suppress(Closed):  # raised again below
                link.settle(doing)
            messages[server] = make(server, link)
        intent = self.intent if is_push else None
        if intent is not None:
            pushes = {server: (link.generation, messages[server].operations) for server, link in asked.items()}
            intent.begin(self.work.closure, self.work.sequence, pushes)
        try:
            for server, link in asked.items():
                with contextlib.suppress(Closed):
                    link.send(messages[server])
            answers = [self._answer(server, link, make, doing) for server, link in asked.items()]
        except BaseException:
            if intent is not None:
                intent.drop()
            raise
        error = next((answer for answer in answers if isinstance(answer, bytes)), None)
        if intent is not None:
            (intent.end if error is None else intent.drop)()
        if error is not None:
            raise unpack_error(error)
        return answers

    def _answer(self, server: int, link: Link, make: Callable[[int, Link], Any], doing: str) -> Any:
        """Wait for a server's answer. A successor gets the same message again, since it knows what was applied."""
        for _ in range(10):
            try:
                return link.channel.receive(_ANSWER_SECONDS, doing)[0]
            except Closed:
                self._replaced(server, link.generation)
                self.work.attempt = max(1, self.work.attempt)  # so that the successor checks whether it was applied
                link = self.links[server]
                with contextlib.suppress(Closed):
                    link.send(make(server, link))
        raise LostProcessError(f"Server {server} was lost 10 times while {doing}.")

    def close(self) -> None:
        """Close all links and memories."""
        if self.intent is not None:
            self.intent.close()
        for link in self.links:
            link.channel.close()
            link.outbox.memory.close()
        for memory in self.memories:
            memory.close()


def split(spec: VariableSpec, values: np.ndarray, rows: np.ndarray | None) -> list[tuple[int, Change]]:
    """Split a change of a variable into changes of its shards, each with its server."""
    if len(spec.shards) == 1:
        shard = spec.shards[0]
        return [(shard.server, Change(shard.index, values, rows))]
    parts = []
    for shard in spec.shards:
        if rows is None:
            part = values[shard.first : shard.end] if values.ndim else values
            parts.append((shard.server, Change(shard.index, part, None)))
        else:
            start, end = np.searchsorted(rows, [shard.first, shard.end])
            if end > start:
                parts.append((shard.server, Change(shard.index, values[start:end], rows[start:end] - shard.first)))
    return parts
