"""A worker: runs closures one after the other, and reports each result."""

import collections
import contextlib
import pickle
import socket
import time
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentTypeError, LostProcessError
from ...replicas._context import entered
from ..servers._client import Client, Link, Work
from ..servers._intent import Intent, Unfinished
from ..servers._push import Outbox, num_bytes
from ..servers._site import Site, at
from ..servers._store import ServerMemory
from ..wire._channel import Channel, Closed
from ..wire._errors import pack_error, unpack_error
from ..wire._memory import Memory
from ..wire._pulse import Pulse
from ..wire._task import Task
from . import _pickling

_REPLACE_SECONDS = 300.0  # how long a worker waits for a new server, or for the coordinator to prepare an optimizer
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


class Worker:
    """One worker's loop. The worker ends when the coordinator's end of `control` closes. It writes what it is doing to `pulse`."""

    def __init__(self, number: int, memories: list[ServerMemory], control: Channel, strategy: Any, pulse: Pulse | None = None):
        self._control = control
        self._pulse = pulse or Pulse.alone()
        self._client = Client(number, memories, self._await_server)
        self._site = Site(self._client, self._prepare)
        self._site.strategy = strategy
        self._functions: dict[int, Any] = {}
        self._waiting: collections.deque[tuple[Any, list[int]]] = collections.deque()
        self._links: dict[int, Link] = {}

    def run(self) -> None:
        """Run closures until told to stop."""
        try:
            with at(self._site), entered(self._site.strategy, None):
                self._control.send(("ready",))
                while self._obey(*self._next()):
                    pass
        except Closed:
            pass
        finally:
            self._client.close()

    def _next(self) -> tuple[Any, list[int]]:
        if self._waiting:
            return self._waiting.popleft()
        while True:
            with contextlib.suppress(LostProcessError):  # it is fine if nothing is scheduled for a long time
                return self._control.receive(3600.0, "waiting for work")

    def _obey(self, message: tuple[Any, ...], fds: list[int]) -> bool:
        what, *rest = message
        if what == "stop":
            return False
        if what == "server":
            self._connect(rest[0], rest[1], fds)
        elif what == "intent":
            self._client.intent = Intent(Memory(fds[0]))
        elif what == "function":
            self._functions[rest[0]] = rest[1]
        elif what == "parcel":
            self._site.parcels[rest[0]] = rest[1]
        elif what == "drop":
            self._site.drop(rest[0])
        elif what == "forget":
            self._functions.pop(rest[0], None)
        elif what == "run":
            self._run(*rest)
        return True

    def _connect(self, server: int, generation: int, fds: list[int]) -> None:
        channel = Channel(socket.socket(fileno=fds[0]), f"server {server}")
        self._links[server] = Link(channel, Outbox(Memory(fds[1])), generation)
        self._client.links = [self._links[i] for i in sorted(self._links)]

    # Running

    def _run(self, task: Task, function: int, args: bytes, unfinished: Unfinished | None = None) -> None:
        start = time.perf_counter()
        self._pulse.begin(task.closure, task.attempt)
        self._client.work = Work(task.closure + 1, task.attempt, task.low_water)
        self._client.seen, self._client.holds = None, task.holds
        before, held = (self._client.pulled_bytes, self._client.pushed_bytes), None
        try:
            if unfinished is not None:
                self._client.finish(unfinished)
            result = self._call(function, args)
            held = self._client.end()
            answer = ("done", task.closure, task.attempt, None if result is None else pickle.dumps(result, protocol=5))
        except (Closed, KeyboardInterrupt):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a closure raises is its result
            self._client.drop()
            answer = ("failed", task.closure, task.attempt, pack_error(error, "the worker"))
        after = self._client.pulled_bytes, self._client.pushed_bytes
        pushed = after[1] - before[1] + sum(map(num_bytes, held or ()))
        cost = time.perf_counter() - start, after[0] - before[0], pushed, self._client.work.is_mixed
        self._control.send((*answer, cost, held))
        self._pulse.end()

    def _call(self, function: int, args: bytes) -> Any:
        fn = self._functions[function]
        if isinstance(fn, bytes):
            fn = self._functions[function] = _pickling.loads(fn)
        positional, keyword = _pickling.loads(args)
        return to_host(fn(*positional, **keyword))

    # Asking the coordinator

    def _prepare(self, optimizer: int, variables: list[int]) -> None:
        self._control.send(("prepare", optimizer, variables))
        error = self._await("prepared", optimizer)[0][2]
        if error is not None:
            raise unpack_error(error)

    def _await_server(self, server: int, generation: int) -> None:
        """Wait until a lost server has been replaced."""
        while self._links[server].generation <= generation:
            message, fds = self._await("server", server)
            self._connect(message[1], message[2], fds)

    def _await(self, what: str, number: int) -> tuple[Any, list[int]]:
        while True:
            message, fds = self._control.receive(_REPLACE_SECONDS, f"waiting for {what} {number}")
            if message[:2] == (what, number):
                return message, fds
            if message[0] == "server":
                self._connect(message[1], message[2], fds)
            else:
                self._waiting.append((message, fds))


def to_host(result: Any) -> Any:
    """A closure's result with NumPy arrays. Raises ArgumentTypeError for anything but arrays, numbers, text and None."""

    def leaf(value: Any) -> Any:
        if isinstance(value, jax.Array):
            return np.array(value)  # a copy: on CPU it may share memory with a variable's buffer
        if isinstance(value, (np.ndarray, *_PLAIN)):
            return value
        if hasattr(value, "__array__"):
            return np.asarray(value)
        raise ArgumentTypeError(
            f"A scheduled function returned {value!r} of type {type(value).__name__}. Return arrays, numbers, text, None, or "
            "nested structures of them."
        )

    return None if result is None else jax.tree.map(leaf, result)
