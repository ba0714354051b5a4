"""Starts servers and workers as Ray actors, on as many machines as Ray has.

    the coordinator's process                                       on some machine
    Cluster ── channel ── loop of a RayMember ── calls of Ray ─────▶ ServerActor: ServerState
            ── channel ── loop of a RayMember ── calls of Ray ─────▶ WorkerActor: Worker ── channel ── RayLink ──▶ ServerActor
    Client  ── channel ── RayLink ─────────────────────────────────▶ ServerActor

No memory is shared, so each process has copies of what it reads (``_mirror``), and a lost server restarts from the coordinator's
last snapshot of it (``_snapshots``). Watching, replacing and scheduling work as they do on one machine.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ...cluster.resolvers._ray import join_ray, leave_ray
from ...errors import ArgumentError, ArgumentTypeError
from ..processes._environment import settings_of, without_virtual_devices
from ..servers._push import Push
from ..wire._channel import Channel, Closed
from ..wire._memory import Memory
from ._link import RayLink, values_of
from ._loop import Loop
from ._mirror import Mirrors
from ._placing import Node, choose, fitting, wanted_of
from ._server import Pulled
from ._snapshots import Snapshots

_logger = logging.getLogger("replicant.coordinator")
_SOON = 1.0  # seconds between a change made by the coordinator itself and the next snapshot
_END_SECONDS = 10.0
_OPTIONS = {"num_cpus": 0}
_FIXED = {
    "max_restarts": 0,
    "max_task_retries": 0,
}  # the cluster replaces lost servers and workers, since it knows what was lost


class RayTransport:
    """Places servers and workers on a Ray cluster: ``ParameterServerStrategy(transport=RayTransport(...))``.

    If Ray is initialised, it is used as it is. Otherwise the strategy connects to the cluster in RAY_ADDRESS, or starts one on this
    machine. That one listens on 127.0.0.1 only, and ends when the last strategy that uses it is closed. This package must be
    installed on every node.

    Args:
        server_options: Ray's options for each server, as in ``Actor.options``: ``{"num_cpus": 2, "memory": 8 << 30}``. None
            reserves no resources. Each server is placed on a node of its own if there are enough that have what it asks for, and
            likewise each worker; workers and servers share nodes only if there are too few for all. A warning says if two servers,
            or two workers, share a node. ``"scheduling_strategy"`` leaves this to Ray.
        worker_options: the same for each worker, for example ``{"num_gpus": 1}``.
        snapshot_seconds: seconds between two snapshots of a server. If a server is lost, its updates since the last snapshot are
            lost, too. A warning says how many.

    Raises:
        ArgumentError: if `snapshot_seconds` is not a positive number, or another strategy already uses this transport.
        ArgumentTypeError: if options are not a mapping.
        ConfigurationError: if Ray is not installed, or does not start.

    >>> RayTransport(snapshot_seconds=0)
    Traceback (most recent call last):
        ...
    replicant.errors.ArgumentError: snapshot_seconds must be a positive number of seconds. Received: 0.
    """

    def __init__(
        self,
        *,
        server_options: Mapping[str, Any] | None = None,
        worker_options: Mapping[str, Any] | None = None,
        snapshot_seconds: float = 10.0,
    ):
        if isinstance(snapshot_seconds, bool) or not isinstance(snapshot_seconds, int | float) or not snapshot_seconds > 0:
            raise ArgumentError(f"snapshot_seconds must be a positive number of seconds. Received: {snapshot_seconds!r}.")
        for name, options in (("server_options", server_options), ("worker_options", worker_options)):
            if not isinstance(options, Mapping | None):
                raise ArgumentTypeError(f"{name} must be a mapping such as {{'num_cpus': 1}}. Received: {options!r}.")
        self._options = {"server": dict(server_options or {}), "worker": dict(worker_options or {})}
        self.snapshot_seconds = snapshot_seconds
        self._is_open = False

    def open(self, servers: int, workers: int) -> Sequence[Any]:
        """Join Ray. Returns what the coordinator uses in place of the servers' memories."""
        if self._is_open:
            raise ArgumentError("This RayTransport already belongs to another strategy. Make one for each strategy.")
        self.ray = join_ray()
        self._is_open = True
        from ._actors import ask  # imports Ray

        self.snapshots = [Snapshots() for _ in range(servers)]
        self.actors: dict[int, tuple[int, Any]] = {}
        self._counts = {"server": servers, "worker": workers}
        self._places: dict[tuple[str, int], str] = {}  # the node of each server and worker
        self._told: set[str] = set()  # roles whose members share nodes
        self.mirrors = Mirrors(servers, ask, self.see, is_worker=False)
        for memory, snapshots in zip(self.mirrors.memories, self.snapshots, strict=True):
            memory.count_lost = lambda kept=snapshots: kept.lost_updates
        cores = int(self.ray.cluster_resources().get("CPU", 1))
        self._threads = {"server": max(1, cores // servers), "worker": max(1, cores // workers)}
        return self.mirrors.memories

    def start(self, role: str, number: int, control: Channel, memories: Sequence[Any]) -> "RayMember":
        """Start an actor. Ray may take a while to place it."""
        from ._actors import ServerActor, WorkerActor  # imports Ray

        kind: Any = ServerActor if role == "server" else WorkerActor
        env = _environment(role, self._threads[role])
        options: dict[str, Any] = _OPTIONS | self._options[role] | _FIXED
        if "scheduling_strategy" not in options:
            options["scheduling_strategy"] = self._place(role, number, wanted_of(options))
        runtime = dict(options.pop("runtime_env", None) or {})
        runtime["env_vars"] = env | runtime.get("env_vars", {})
        make = kind.options(runtime_env=runtime, **options)
        if role == "worker":
            return RayWorker(self, number, control, make.remote(number, len(self.snapshots)))
        generation, snapshot = self.snapshots[number].begin()
        actor = make.remote(number, snapshot)
        self.actors[number] = generation, actor
        self.mirrors.connect(number, generation, actor)
        if generation:
            kept = self.snapshots[number]
            _logger.warning(
                "Server %d was lost and restarts from its snapshot of update %d. At least %d updates were lost with it.",
                number,
                kept.updates,
                kept.lost_by(generation),
            )
        return RayServer(self, number, control, actor, generation)

    def _place(self, role: str, number: int, wanted: Mapping[str, float]) -> Any:
        """Choose a node, and insist on it if the actor reserves nothing there.

        Ray takes "soft" wishes of such actors for none (2.60). If the node is lost before the actor starts, this is called again.
        """
        from ._actors import on_node  # imports Ray

        nodes = [Node(node["NodeID"], node["Resources"]) for node in self.ray.nodes() if node["Alive"]]
        able = fitting(nodes, wanted)
        others = [(kind, place) for (kind, other), place in self._places.items() if (kind, other) != (role, number)]
        chosen = choose(role, able, others)
        if chosen is None:
            return "SPREAD"  # Ray waits for such a node
        self._places[role, number] = chosen
        if len(able) < self._counts[role] and (len(nodes) > 1 or os.environ.get("RAY_ADDRESS")):
            self._tell_shared(role, len(able), wanted)
        return on_node(chosen, insist=not wanted)

    def _tell_shared(self, role: str, num_nodes: int, wanted: Mapping[str, float]) -> None:
        if role not in self._told:
            self._told.add(role)
            having = "".join(f" and {amount:g} {name}" for name, amount in wanted.items()).replace(" and", " with", 1)
            _logger.warning(
                "The %d %ss share %d node(s), because the Ray cluster has no more%s. Losing one node may end several %ss.",
                self._counts[role],
                role,
                num_nodes,
                having,
                role,
            )

    def see(self, server: int, generation: int, updates: int) -> None:
        """Note that a generation of a server has made at least `updates` updates."""
        self.snapshots[server].see(generation, updates)

    def close(self) -> None:
        """Leave Ray, after the strategy's actors have ended."""
        if self._is_open:
            self._is_open = False
            leave_ray()


def _environment(role: str, num_threads: int) -> dict[str, str]:
    """The environment variables in which an actor's process differs from its node."""
    env = settings_of(role, num_threads)
    if "XLA_FLAGS" in os.environ:
        env["XLA_FLAGS"] = without_virtual_devices(os.environ["XLA_FLAGS"])
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        env["JAX_NUM_CPU_DEVICES"] = "1"
    return env


class RayMember:
    """A server's or worker's actor, and the loop that answers for it on `control`, as a local process would."""

    def __init__(self, transport: RayTransport, name: str, control: Channel, actor: Any):
        self.pid: int | None = None
        self._transport, self._control, self._actor = transport, control, actor
        self._how: str | None = None
        self._over = threading.Event()
        self._loop = Loop(f"replicant-ray-{name}", self._died)
        self._loop.call(self._begin)

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        return self._how

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(Exception):  # if somebody else has shut Ray down, there is nothing to end
            self._transport.ray.kill(self._actor, no_restart=True)

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for its end. Returns whether it has ended."""
        if self._over.wait(seconds):
            self._loop.join(_END_SECONDS)
            return True
        return False

    def _begin(self) -> None:
        self._loop.add(self._control, self._take, self.kill)

    def _take(self, message: Any, fds: list[int]) -> None:
        if message[0] == "stop":
            self.kill()
        else:
            self._forward(message, fds)

    def _forward(self, message: Any, fds: list[int]) -> None:
        raise NotImplementedError

    def _say(self, message: Any) -> None:
        with contextlib.suppress(Closed):  # the loop notices
            self._control.send(message)

    def _died(self, error: BaseException | None) -> None:
        """Note that the actor was lost, or the loop failed: in both cases the cluster replaces this member."""
        if self._how is None:
            text = " ".join(str(error).split())[:500]
            self._how = f"was lost ({type(error).__name__}: {text})"
            self.kill()
        self._loop.end()
        self._over.set()


class RayServer(RayMember):
    """A server's actor, of which this takes snapshots."""

    def __init__(self, transport: RayTransport, number: int, control: Channel, actor: Any, generation: int):
        self._number, self._generation = number, generation
        self._snapshots = transport.snapshots[number]
        self._is_due = False
        super().__init__(transport, f"server-{number}", control, actor)

    def _begin(self) -> None:
        super()._begin()
        self._loop.when(self._actor.watch.remote().future(), lambda _, error: self._died(error))
        self._loop.later(self._transport.snapshot_seconds, self._each_time)

    def _forward(self, message: Any, fds: list[int]) -> None:
        if message[0] == "begin":  # the snapshot already contains what it says
            self._loop.when(self._actor.hello.remote().future(), self._ready)
        elif message[0] == "client" and message[1] == 0:
            channel = Channel(socket.socket(fileno=fds[0]), "the coordinator")
            place = self._number, self._generation, self._actor
            RayLink(self._loop, channel, Memory(fds[1]), place, self._transport.mirrors, noted=self._note)
        else:  # a worker's link: its actor calls this one directly
            for fd in fds:
                os.close(fd)

    def _ready(self, pid: int | None, error: BaseException | None) -> None:
        if error is None:
            self.pid = pid
            self._say(("ready",))

    def _note(self, message: Any) -> Any:
        """Remember the coordinator's own messages for the server's successor."""
        if isinstance(message, Push):
            self._take_soon()
        elif message[0] == "shards":
            values = values_of(self._transport.mirrors, self._number, message[1])
            self._snapshots.add_shards(message[1], values)
            return (*message, values)
        elif message[0] == "rule":
            self._snapshots.add_rule(*message[1:])
        return message

    def _take_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.later(_SOON, self._snapshot)

    def _each_time(self) -> None:
        self._snapshot()
        self._loop.later(self._transport.snapshot_seconds, self._each_time)

    def _snapshot(self) -> None:
        self._is_due = False
        future = self._actor.snapshot.remote(self._snapshots.known()).future()
        self._loop.when(future, self._took)

    def _took(self, pulled: Pulled | None, error: BaseException | None) -> None:
        if error is None and pulled is not None:
            self._snapshots.take(self._generation, pulled)


class RayWorker(RayMember):
    """A worker's actor."""

    def __init__(self, transport: RayTransport, number: int, control: Channel, actor: Any):
        super().__init__(transport, f"worker-{number}", control, actor)

    def _begin(self) -> None:
        super()._begin()
        self._collect()

    def _collect(self) -> None:
        self._loop.when(self._actor.collect.remote().future(), self._collected)

    def _collected(self, found: Any, error: BaseException | None) -> None:
        if error is not None:
            self._died(error)
            return
        self.pid, messages, seen = found
        for (server, generation), updates in seen.items():
            self._transport.see(server, generation, updates)
        for message in messages:
            self._say(message)
        self._collect()

    def _forward(self, message: Any, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        if message[0] == "server":
            message = ("server", message[1], *self._transport.actors[message[1]])
        self._loop.when(self._actor.deliver.remote(message).future(), lambda _, error: error and self._died(error))
