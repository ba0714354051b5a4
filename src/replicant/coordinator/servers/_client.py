"""How a process reads the servers' variables and pushes changes to them."""

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

NO_CLOSURE = 1 << 62  # of what the coordinator changes by itself
_ANSWER_SECONDS = 240.0  # a server may have to be replaced first, and a first push to a server compiles its update there


@dataclasses.dataclass
class Link:
    """A way to one server. generation: how many times the server has been replaced."""

    channel: Channel
    outbox: Outbox
    generation: int = 0

    def send(self, message: Any) -> None:
        """Send what will be answered."""
        self.channel.send(message, seconds=_ANSWER_SECONDS)

    def settle(self, doing: str) -> None:
        """Take in the answers that somebody stopped waiting for, since the next one is not for what is asked next.

        Nor may the outbox be written to before.
        """
        while self.channel.num_sent > self.channel.num_received:
            self.channel.receive(_ANSWER_SECONDS, doing)


@dataclasses.dataclass
class Work:
    """Whose pushes these are. closure: its number + 1; the coordinator's own have one that never ends.

    done: so many pushes are an earlier attempt's, whatever they were of. applied, repeated: whether a push of this attempt was
    applied, and whether one was left out because an earlier attempt's had been.
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
        """Whether some changes are of one attempt and some of another."""
        return self.applied and self.repeated


class Client:
    """One process's access to all servers. number: 0 is the coordinator.

    replaced: called with a server's number and the generation that failed; returns once there is a new link to it.
    """

    def __init__(self, number: int, memories: Sequence[ServerMemory], replaced: Callable[[int, int], None]):
        self.number = number
        self.memories = list(memories)
        self.links: list[Link] = []
        self.work = Work()
        self.lock = threading.RLock()
        self.seen: list[int] | None = None  # each server's updates when the first value was read since the last push
        self.holds = False  # changes are not pushed: `end` hands them over
        self.pulled_bytes = 0
        self.pushed_bytes = 0
        self.intent: Intent | None = None
        self._replaced = replaced
        self._batch: list[list[Operation]] = [[] for _ in memories]

    # Reading

    def version(self, spec: VariableSpec) -> tuple[Any, ...]:
        """Changes with every update of the variable."""
        return _store.version(spec, self.memories)

    def read(self, spec: VariableSpec, make: Callable[[tuple[int, ...], Any], np.ndarray] = aligned) -> np.ndarray:
        """The variable's value, as a copy."""
        self.note_read()
        self.pulled_bytes += spec.nbytes
        return _store.read(spec, self.memories, make)

    def view(self, spec: VariableSpec, position: int) -> Any:
        """The buffers of one of a variable's shards, as they are."""
        shard = spec.shards[position]
        return self.memories[shard.server].view(shard, spec.dtype)

    def note_read(self) -> None:
        """Remember at which update of the servers this process looked."""
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
        """Note a change of a variable, to be pushed with the next `flush`."""
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
        """Push everything that has been noted, to all servers at once, and wait until it has been applied."""
        if not any(self._batch):
            return
        if self.holds:
            raise VariableError(
                "A variable was read after another was changed in a function of a synchronous ClusterCoordinator. Changes are "
                "made together with those of the other functions, when all have ended. Read first, or do both in one "
                "replicant.function."
            )
        with self.lock:
            self.push(self._taken())

    def end(self) -> list[list[Operation]] | None:
        """A function has ended: push what it noted. If changes are held, return them instead, by server."""
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
        """Do to its end what an earlier attempt had begun to push; what this one would push in its place is left out."""
        if unfinished.batch is not None:
            self.work.sequence = unfinished.sequence - 1
            self.push([unfinished.batch.get(server, []) for server in range(len(self.memories))])
        self.work = dataclasses.replace(self.work, sequence=0, done=unfinished.sequence, applied=False, repeated=False)

    def drop(self) -> None:
        """Forget what was noted and not pushed."""
        self._batch = [[] for _ in self.memories]

    def tell(self, message: Any, servers: Sequence[int] | None = None) -> None:
        """Send a message to servers (all by default) and wait for the answers."""
        with self.lock:
            self._ask(
                range(len(self.links)) if servers is None else servers,
                lambda *_: message,
                "taking a message",
            )

    def _ask(self, servers: Sequence[int], make: Callable[[int, Link], Any], doing: str, *, is_push: bool = False) -> list[Any]:
        asked = {server: self.links[server] for server in servers}  # while one is waited for, others may be replaced
        messages = {}
        for server, link in asked.items():
            with contextlib.suppress(Closed):  # noticed again below
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
        """A server's answer; after the server was replaced, the new one's to the same message: it knows what was applied."""
        for _ in range(10):
            try:
                return link.channel.receive(_ANSWER_SECONDS, doing)[0]
            except Closed:
                self._replaced(server, link.generation)
                self.work.attempt = max(1, self.work.attempt)  # the server shall look whether it has seen it
                link = self.links[server]
                with contextlib.suppress(Closed):
                    link.send(make(server, link))
        raise LostProcessError(f"Server {server} was lost 10 times while {doing}.")

    def close(self) -> None:
        """Hang up."""
        if self.intent is not None:
            self.intent.close()
        for link in self.links:
            link.channel.close()
            link.outbox.memory.close()
        for memory in self.memories:
            memory.close()


def split(spec: VariableSpec, values: np.ndarray, rows: np.ndarray | None) -> list[tuple[int, Change]]:
    """A change of a variable as changes of its shards, each with its server."""
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
