"""A server or worker as the coordinator knows it, and the links to a server."""

import contextlib
import dataclasses

from ..servers._client import Link
from ..servers._intent import Intent, Unfinished
from ..servers._push import Outbox
from ..wire._channel import Channel, Closed
from ..wire._memory import Memory
from ._health import Health
from ._transport import Running


@dataclasses.dataclass
class Member:
    """A server or worker.

    Attributes:
        client: the number in its pushes.
        generation: how many members had its place before.
        why: why it was ended, in words.
        intent: what a worker that shares memory is about to push.
        outboxes: the arrays of those pushes, by server and its generation.
    """

    role: str
    index: int
    control: Channel
    running: Running
    client: int = 0
    generation: int = 0
    ready: bool = False
    failed_starts: int = 0
    why: str = ""
    intent: Intent | None = None
    outboxes: dict[tuple[int, int], Memory] = dataclasses.field(default_factory=dict)
    health: Health = dataclasses.field(default_factory=Health)

    @property
    def executing(self) -> tuple[int, int] | None:
        """The closure that a worker is running, or was running when it died, and the attempt. Requires a pulse."""
        return self.running.pulse.executing  # type: ignore[attr-defined]  # a member without a pulse is not asked

    def unfinished(self, closure: int) -> Unfinished | None:
        """How far a lost worker had got with the pushes of a closure; None if it pushed nothing, or this is unknown."""
        return None if self.intent is None else self.intent.unfinished(closure + 1, self.outboxes)

    def release(self) -> None:
        """Close the memory that was shared with a lost worker."""
        if self.intent is not None:
            self.intent.close()
        for outbox in self.outboxes.values():
            outbox.close()

    @property
    def has_pulse(self) -> bool:
        """Whether it has a pulse, which shows what it is doing."""
        return getattr(self.running, "pulse", None) is not None

    def __str__(self) -> str:
        return f"{self.role} {self.index}" + (f" (process {self.running.pid})" if self.running.pid else "")


def connect(worker: Member, server: Member) -> None:
    """Link a worker to a server."""
    one, other = Channel.pair(str(worker), str(server))
    outbox = Memory.create()
    with contextlib.suppress(Closed):  # the server was lost: its successor will be connected
        server.control.post(("client", worker.client), [other.fileno(), outbox.fd])
    with contextlib.suppress(Closed):
        worker.control.post(("server", server.index, server.generation), [one.fileno(), outbox.fd])
    one.close()
    other.close()
    if worker.intent is None:
        outbox.close()
    else:
        worker.outboxes[server.index, server.generation] = outbox


def link_to(server: Member) -> Link:
    """Make the coordinator's own link to a server."""
    one, other = Channel.pair("the coordinator", str(server))
    outbox = Memory.create()
    with contextlib.suppress(Closed):
        server.control.post(("client", 0), [other.fileno(), outbox.fd])
    other.close()
    return Link(one, Outbox(outbox), server.generation)
