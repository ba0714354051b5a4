"""Starts, connects, watches, replaces and ends the servers and workers of one strategy."""

import atexit
import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from ...errors import LostProcessError
from ..servers._allocator import Allocator, shards_on
from ..servers._client import Client
from ..servers._intent import Intent
from ..servers._placing import Shard
from ..servers._store import ServerMemory, VariableSpec
from ..wire._channel import Channel, Closed
from ..wire._memory import Memory
from ._events import Events
from ._member import Member, connect, link_to
from ._transport import Transport

_logger = logging.getLogger("replicant.coordinator")
START_SECONDS = 180.0
HEARTBEAT_SECONDS = 30.0  # a process without a heartbeat for this long counts as dead
END_SECONDS = 10.0
_LOOK_SECONDS = 1.0  # between two checks of all members
_MAX_FAILED_STARTS = 3


class Cluster:
    """The coordinator's side of a strategy's servers and workers: everything but the scheduling.

    Attributes:
        keeps_answers: whether everything that a worker sent before it died still arrives. If not, a worker must not start a
            closure before the answer of the previous one has arrived: that closure might run again, and servers remember only
            the last push of a worker.
    """

    def __init__(self, num_servers: int, num_workers: int, transport: Transport, events: Events):
        self._transport = transport
        self._events = events
        self.keeps_answers = getattr(transport, "keeps_answers", False)
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.memories = transport.open(num_servers, num_workers)
        atexit.unregister(end_all)
        atexit.register(end_all)  # after the transport's imports have registered theirs: the last registered is called first
        self._allocator = Allocator(self.memories)
        self._next_client = 1
        self.rules: dict[int, bytes] = {}
        self.client = Client(0, self.memories, self._await_server)
        self.failure: Exception | None = None
        self.num_replaced = {"server": 0, "worker": 0}
        self._stopping = False
        self._waking = threading.Lock()  # so that `wake` never writes to a descriptor that was closed and reused
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        self.servers = [self._start("server", i) for i in range(num_servers)]
        for server in self.servers:
            self._begin(server, [], [])
        self.client.links = [link_to(server) for server in self.servers]
        self.workers: list[Member] = []
        for i in range(num_workers):
            self.workers.append(self._start_worker(i, 0))
        self._members: dict[int, Member] = {}
        self._blocked: set[int] = set()  # descriptors of channels that have unsent messages
        self._poller: Any = None
        self._helpers: list[threading.Thread] = []
        self._helping = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="replicant-cluster", daemon=True)
        self._thread.start()
        _clusters.add(self)
        self._await_start()

    # Starting

    def _start(self, role: str, index: int, memories: list[ServerMemory] | None = None) -> Member:
        here, there = Channel.pair("the coordinator", f"{role} {index}")
        running = self._transport.start(role, index, there, memories or [self.memories[index]])
        return Member(role, index, here, running)

    def _begin(self, server: Member, shards: list[tuple[Shard, str]], rules: list[tuple[int, bytes]]) -> None:
        with contextlib.suppress(Closed):  # it has already ended: the watching thread notices
            server.control.post(("begin", shards, rules))

    def _start_worker(self, index: int, generation: int) -> Member:
        number, self._next_client = self._next_client, self._next_client + 1
        here, there = Channel.pair("the coordinator", f"worker {index}")
        running = self._transport.start("worker", number, there, self.memories)
        worker = Member("worker", index, here, running, client=number, generation=generation)
        if self.keeps_answers:
            memory = Memory.create()
            worker.intent = Intent(memory)
            with contextlib.suppress(Closed):  # it has already ended: the watching thread notices
                worker.control.post(("intent",), [memory.fd])
        for server in self.servers:
            connect(worker, server)
        return worker

    def _await_start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        with self._changed:
            missing, error = self._not_ready(), self.failure
            while missing and error is None:
                in_time = self._changed.wait(max(0.0, deadline - time.monotonic()))
                missing, error = self._not_ready(), self.failure
                if missing and not in_time and error is None:
                    error = LostProcessError(f"{', '.join(missing)} did not start within {START_SECONDS:.0f} s.")
        if error is not None:
            self.close()  # without the lock, which the watching thread may need in order to end
            raise error

    def _not_ready(self) -> list[str]:
        return [str(member) for member in (*self.servers, *self.workers) if not member.ready]

    # Watching

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._stopping

    def wake(self) -> None:
        """Have the watching thread call `Events.woken`. Any thread may call this at any time."""
        with self._waking, contextlib.suppress(BlockingIOError):
            if self._wake_out >= 0:
                os.write(self._wake_out, b"x")

    def help_out(self, name: str, fn: Callable[..., Any], *args: Any) -> None:
        """Call `fn` on a thread of its own. `close` waits for it, as it may be inside JAX when the program ends."""
        with self._helping:
            thread = threading.Thread(target=fn, args=args, name=name, daemon=True)
            thread.start()
            self._helpers = [each for each in self._helpers if each.is_alive()] + [thread]

    def _await_helpers(self) -> None:
        with self._helping:
            helpers, self._helpers = self._helpers, []
        deadline = time.monotonic() + END_SECONDS
        for thread in helpers:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self) -> None:
        """Run the watching thread. Without it everything would wait forever, so an error in it ends the cluster."""
        try:
            self._watch_on()
        except Exception as error:  # noqa: BLE001 - every present and later caller gets it
            failure = LostProcessError(f"The thread that watches workers and servers failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            with self._changed:
                self.failure = failure
                self._changed.notify_all()
        if self.failure is not None:
            self._events.woken()

    def _watch_on(self) -> None:
        """Wait for events and handle them, until the cluster is closed or fails."""
        looked = time.monotonic()
        while not self._stopping and self.failure is None:
            poller = self._poller or self._register()
            self._note_blocked(poller)
            ready = [(fd, 0) for fd, member in self._members.items() if member.control.has_news]  # arrived while we were sending
            for fd, _ in ready or poller.poll(1000 * max(0.0, looked + _LOOK_SECONDS - time.monotonic())):
                if fd == self._wake_in:
                    os.read(self._wake_in, 4096)
                    self._events.woken()
                elif self._attend(self._members[fd]):
                    break
            passed = time.monotonic() - looked
            if passed >= _LOOK_SECONDS:
                looked += passed
                self._look(passed)

    def _register(self) -> Any:
        self._members = {member.control.fileno(): member for member in (*self.servers, *self.workers)}
        self._blocked = set()
        self._poller = select.poll()
        for fd in (self._wake_in, *self._members):
            self._poller.register(fd, select.POLLIN)
        return self._poller

    def _note_blocked(self, poller: Any) -> None:
        """Poll for room on the channels that have unsent messages."""
        blocked = {fd for fd, member in self._members.items() if member.control.outgoing_bytes}
        for fd in blocked ^ self._blocked:
            poller.modify(fd, select.POLLIN | (select.POLLOUT if fd in blocked else 0))
        self._blocked = blocked

    def _look(self, passed: float) -> None:
        """Find members that are lost although their channels are open."""
        for member in (*self.servers, *self.workers):
            if member.health.has_ended(member.running, member.control.num_received, passed):
                self._replace(member)
                continue
            limits = {"start": START_SECONDS, "heartbeat": HEARTBEAT_SECONDS}
            if why := member.health.overdue(member.running, passed, ready=member.ready, **limits):
                self.end(member, why)
        self._events.look(passed)

    def end(self, member: Member, why: str) -> None:
        """End a member that no longer works. Its messages are still read; then another one replaces it."""
        _logger.warning("%s %s. It is ended and replaced.", member, why)
        member.why = why
        member.running.kill()

    def _attend(self, member: Member) -> bool:
        """Handle a member's messages. Returns True if it was replaced."""
        with contextlib.suppress(Closed):  # noticed below, once all of its messages have been read
            member.control.flush()
        try:
            member.control.poll()
            while message := member.control.next():
                if message[0][0] == "ready":
                    with self._changed:
                        member.ready, member.failed_starts = True, 0
                        self._changed.notify_all()
                    if member.role == "worker":
                        self._events.ready(member)
                else:
                    self._events.said(member, message[0])
        except Closed:
            self._replace(member)
            return True
        return False

    def _replace(self, member: Member) -> None:
        member.running.kill()
        member.running.wait(END_SECONDS)
        how = member.why or member.running.ended() or "hung up"
        member.control.close()
        self._poller = None
        self._start_another(member, how)
        self.wake()  # other workers may take its closures

    def _start_another(self, member: Member, how: str) -> None:
        with self._changed:
            if self._stopping:
                return
            failed = 0 if member.ready else member.failed_starts + 1
            if failed >= _MAX_FAILED_STARTS:
                self.failure = LostProcessError(f"{member} {how} {failed} times before it was ready. See its output for the cause.")
                self._changed.notify_all()
                return
            self.num_replaced[member.role] += 1
            if member.role == "server":
                self._replace_server(member, failed)
            else:
                self._events.lost(member, how)
                member.release()
                if self.failure is not None:
                    self._changed.notify_all()
                    return
                successor = self._start_worker(member.index, member.generation + 1)
                successor.failed_starts = failed
                self.workers[member.index] = successor
            self._changed.notify_all()

    def _replace_server(self, member: Member, failed: int) -> None:
        successor = self._start("server", member.index)
        successor.generation, successor.failed_starts = member.generation + 1, failed
        self.servers[member.index] = successor
        self._begin(successor, shards_on(member.index, self._allocator.specs), list(self.rules.items()))
        self.client.links[member.index] = link_to(successor)
        for worker in self.workers:
            connect(worker, successor)

    def _await_server(self, server: int, generation: int) -> None:
        """Wait until a lost server has been replaced."""
        deadline = time.monotonic() + START_SECONDS
        with self._changed:
            while self.client.links[server].generation <= generation:
                self.check()
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise LostProcessError(f"Server {server} was lost and not replaced within {START_SECONDS:.0f} s.")

    def check(self) -> None:
        """Raise if the cluster cannot go on."""
        if self.failure is not None:
            raise self.failure
        if self._stopping:
            raise LostProcessError("The strategy's close() has ended its workers and servers. Make another strategy.")

    # Variables

    def create(self, name: str, value: Any, *, trainable: bool, servers: list[int] | None = None, cuts: Any = None) -> VariableSpec:
        """Put a variable on the servers.

        `cuts` are the rows of each shard, as (first, end). `servers` are their servers, which by default take turns.
        """
        self.check()
        with self.lock:
            spec = self._allocator.place(name, value, trainable=trainable, servers=servers, cuts=cuts)
        for server in sorted({shard.server for shard in spec.shards}):
            self.client.tell(("shards", shards_on(server, [spec])), [server])
        return spec

    def add_rule(self, number: int, blob: bytes) -> None:
        """Send an optimizer to all servers."""
        with self.lock:
            self.rules[number] = blob
        self.client.tell(("rule", number, blob))

    # Ending

    def close(self) -> None:
        """End all servers and workers. Calling it again does nothing."""
        with self.lock:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        self.wake()
        self._thread.join(END_SECONDS)
        self._events.woken()  # ends the closures that are waited for
        members = [*self.workers, *self.servers]
        for member in members:
            with contextlib.suppress(Closed):
                member.control.post(("stop",))
            member.control.close()
        deadline = time.monotonic() + END_SECONDS
        for member in members:
            if not member.running.wait(max(0.1, deadline - time.monotonic())):
                member.running.kill()
                member.running.wait(END_SECONDS)
            member.release()
        self._await_helpers()  # they no longer wait for a server
        self.client.close()
        self._transport.close()
        with self._waking:
            os.close(self._wake_in)
            os.close(self._wake_out)
            self._wake_out = -1
        _clusters.discard(self)


_clusters: set[Cluster] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clusters.clear)  # they belong to the parent: a forked child must not end them


def end_all() -> None:
    """Close all clusters of this process."""
    for cluster in list(_clusters):
        cluster.close()
