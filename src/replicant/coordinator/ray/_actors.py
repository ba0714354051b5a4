"""The Ray actors: a server and a worker. Imported only when Ray is in use."""

import collections
import faulthandler
import os
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from .._worker_strategy import worker_strategy
from ..wire._channel import Channel, Closed
from ..wire._memory import Memory
from ..workers._worker import Worker
from ._link import RayLink
from ._loop import Loop
from ._mirror import Gone, Mirrors
from ._server import Pulled, ServerState, Snapshot

_remote: Any = ray.remote
_COLLECT_SECONDS = 60.0  # after this time without news, the coordinator asks again


def ask(handle: Any, method: str, argument: Any) -> Callable[[float], Any]:
    """Implements the argument `ask` of ``_mirror.Mirrors``."""
    reference = getattr(handle, method).remote(argument)

    def wait(seconds: float) -> Any:
        try:
            return ray.get(reference, timeout=seconds)
        except exceptions.GetTimeoutError as error:
            raise TimeoutError from error
        except exceptions.RayActorError as error:
            raise Gone from error

    return wait


def on_node(node: str, *, insist: bool) -> Any:
    """The scheduling strategy of an actor for a node. If `insist` is false, Ray takes another one if that one has no room."""
    return NodeAffinitySchedulingStrategy(node, soft=not insist, _spill_on_unavailable=not insist)


@_remote(concurrency_groups={"watch": 1})
class ServerActor:
    """A server. Calls run one after the other, except `watch`, which ends with the process."""

    def __init__(self, number: int, snapshot: Snapshot):
        faulthandler.register(signal.SIGUSR1)  # Ray's log of this process shows where it hangs
        self._state = ServerState(number, snapshot)

    def hello(self) -> int:
        """The process ID."""
        return os.getpid()

    def ask(self, message: Any) -> tuple[Any, int]:
        """See `ServerState`."""
        return self._state.ask(message)

    def pull(self, known: dict[int, tuple[int, int] | None]) -> Pulled:
        """See `ServerState`."""
        return self._state.pull(known)

    def snapshot(self, known: dict[int, tuple[int, int] | None]) -> Pulled:
        """What has changed, with the ledger."""
        return self._state.pull(known, books=True)

    def counts(self, _: None) -> Any:
        """See `ServerState`."""
        return self._state.counts()

    @ray.method(concurrency_group="watch")
    def watch(self) -> None:
        """Never return, so that the call fails when this process ends."""
        threading.Event().wait()


@_remote(concurrency_groups={"watch": 1})
class WorkerActor:
    """A worker: runs ``workers._worker.Worker`` in a thread, and the other ends of its channels in a loop."""

    def __init__(self, number: int, num_servers: int):
        faulthandler.register(signal.SIGUSR1)
        self._came = threading.Condition()
        self._said: list[Any] = []
        self._seen: dict[tuple[int, int], int] = {}
        self._held: collections.deque[Any] = collections.deque()  # until the running closure has ended
        self._is_busy = False
        self._mirrors = Mirrors(num_servers, ask, self._see, is_worker=True)
        self._loop = Loop("replicant-ray-worker", _give_up)
        self._control, inner = Channel.pair(f"worker {number}", "the coordinator")
        self._loop.call(lambda: self._loop.add(self._control, self._hear, lambda: os._exit(0)))
        threading.Thread(target=self._work, args=(number, inner), name="replicant-worker", daemon=True).start()

    def deliver(self, message: Any) -> None:
        """Take a message from the coordinator."""
        self._loop.call(lambda: self._take(message))

    @ray.method(concurrency_group="watch")
    def collect(self) -> tuple[int, list[Any], dict[tuple[int, int], int]]:
        """Wait for messages of the worker, and return them with what it knows about the servers' updates."""
        with self._came:
            self._came.wait_for(lambda: self._said, _COLLECT_SECONDS)
            said, self._said = self._said, []
            seen, self._seen = self._seen, {}
        return os.getpid(), said, seen

    def _work(self, number: int, inner: Channel) -> None:
        try:
            memories: Any = self._mirrors.memories
            Worker(number, memories, inner, worker_strategy()).run()
        except BaseException as error:  # noqa: BLE001 - it is printed, and this process ends
            _give_up(error)
        os._exit(0)

    def _see(self, server: int, generation: int, updates: int) -> None:
        with self._came:
            self._seen[server, generation] = max(updates, self._seen.get((server, generation), 0))

    def _hear(self, message: Any, _: list[int]) -> None:
        """Take a message of the worker."""
        if message[0] in ("done", "failed"):
            self._is_busy = False
        with self._came:
            self._said.append(message)
            self._came.notify_all()
        self._hand_over()

    def _take(self, message: Any) -> None:
        if message[0] == "server":
            self._connect(*message[1:])
        elif message[0] == "prepared":
            self._control.send(message)
        else:
            self._held.append(message)
            self._hand_over()

    def _hand_over(self) -> None:
        while self._held and not self._is_busy:
            message = self._held.popleft()
            if message[0] == "run":
                self._is_busy = True
                self._mirrors.begin()
            self._control.send(message)

    def _connect(self, server: int, generation: int, actor: Any) -> None:
        self._mirrors.connect(server, generation, actor)
        one, other = Channel.pair(f"worker's link to server {server}", f"server {server}")
        outbox = Memory.create()
        self._control.send(("server", server, generation), [other.fileno(), outbox.fd])
        other.close()
        RayLink(self._loop, one, outbox, (server, generation, actor), self._mirrors)


def _give_up(error: BaseException) -> None:
    if not isinstance(error, Closed):
        traceback.print_exception(error)
    os._exit(1)
