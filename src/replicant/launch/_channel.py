"""The supervisor's end of the connections to its workers. Workers prove who they are, and send short messages in JSON."""

import hmac
import json
import secrets
import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Any, Self

from ..cluster._door import Door
from ..cluster._heartbeat import SUPERVISOR, WORKER, proof
from ..cluster._lines import MAX_LINE, MAX_STRANGERS_LINE, parse_message

_READ = 65536
_REFUSAL = "its key, or its rank, generation and process number, are not of this job"

Message = dict[str, Any]


class Connection:
    """One connection. `rank` is None until the other end has proved that it is a worker."""

    def __init__(self, own: socket.socket):
        self.socket = own
        self.nonce = secrets.token_hex(16)
        self.rank: int | None = None
        self._received = b""

    def read(self) -> Iterator[Message | None]:
        """Yield the messages that have arrived, and then None if the connection is closed or sends what no worker would send."""
        try:
            data = self.socket.recv(_READ if self.rank is not None else MAX_STRANGERS_LINE + 1)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            yield parse_message(line) if len(line) <= self._longest() else None
        if not data or len(self._received) > self._longest():
            yield None

    def send(self, message: Message) -> bool:
        """Send a message. Returns whether it could be sent."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # also if the other end does not read
            return False
        return True

    def _longest(self) -> int:
        return MAX_STRANGERS_LINE if self.rank is None else MAX_LINE


class Channel:
    """Listens for workers on a free port.

    Args:
        interval: The time between two heartbeats of a worker, in seconds.
        host: The address of this machine at which to listen.
        silence: The seconds without a heartbeat after which a worker counts as frozen. Workers that are cut off end before.
        key: The key of the job. By default a new one.
    """

    def __init__(self, interval: float, host: str = "127.0.0.1", silence: float | None = None, key: str | None = None):
        self.key = secrets.token_hex(32) if key is None else key
        self.is_expected: Callable[[int, int, int], bool] = _nobody  # whether rank, generation and pid belong to the job
        self._terms = {"interval": interval, "heartbeat": silence}
        self._connections: dict[socket.socket, Connection] = {}
        self._of_rank: dict[int, list[Connection]] = {}  # those that have proved who they are, the oldest first
        listener = socket.socket()
        listener.bind((host, 0))
        listener.listen(1024)
        self.address = f"{host}:{listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._door = Door(listener, self._selector, self._drop)

    def wake_by(self, descriptor: int) -> None:
        """Make `poll` return early when there is something to read from a file descriptor."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def poll(self, timeout: float) -> Iterator[tuple[int, Message]]:
        """Wait for messages, or until the time is over, and yield each of them with the rank of its worker.

        A worker's first message has the kind "hello". The kind "closed" means that its connection has ended.
        """
        for key, _ in self._selector.select(timeout):
            if self._door.is_at(key.fileobj):
                self._greet()
            elif (connection := self._connections.get(key.fileobj)) is not None:  # type: ignore[call-overload]  # keys are sockets
                yield from self._hear(connection)
        self._door.tidy()

    def send(self, rank: int, message: Message) -> bool:
        """Send a message to a worker. Returns False if it is not connected."""
        return any(connection.send(message) for connection in list(self._of_rank.get(rank, ())))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the listener and all connections."""
        self._door.close()
        for own in list(self._connections):
            self._drop(own)
        self._selector.close()

    def _greet(self) -> None:
        for own in self._door.let_in():
            own.settimeout(1.0)  # for sending; reading happens only when there is something to read
            connection = self._connections[own] = Connection(own)
            self._selector.register(own, selectors.EVENT_READ)
            if not connection.send({"nonce": connection.nonce}):
                self._drop(own)

    def _hear(self, connection: Connection) -> Iterator[tuple[int, Message]]:
        for message in connection.read():
            if message is not None and connection.rank is not None:
                yield connection.rank, message
            elif message is not None and self._admit(connection, message):
                yield message["rank"], message
            else:
                if connection.rank is not None:
                    yield connection.rank, {"kind": "closed"}
                elif message is not None:  # a worker should not try again
                    connection.send({"refused": _REFUSAL})
                self._drop(connection.socket)
                return

    def _admit(self, connection: Connection, hello: Message) -> bool:
        """Whether a stranger is a worker of this job. If it is, it is told so."""
        theirs, who = str(hello.get("nonce")), [hello.get(name) for name in ("rank", "generation", "pid")]
        expected = proof(self.key, WORKER, connection.nonce, theirs)
        if not hmac.compare_digest(str(hello.get("proof")).encode(), expected.encode()):
            return False
        if not all(type(number) is int for number in who) or not self.is_expected(*who):  # type: ignore[arg-type]  # all are int
            return False
        if not connection.send({"proof": proof(self.key, SUPERVISOR, theirs, connection.nonce), **self._terms}):
            return False
        connection.rank = hello["rank"]
        self._of_rank.setdefault(hello["rank"], []).append(connection)
        self._door.admit(connection.socket)
        return True

    def _drop(self, own: socket.socket) -> None:
        connection = self._connections.pop(own, None)
        if connection is not None:
            self._selector.unregister(own)
            if connection.rank is not None:
                self._of_rank[connection.rank].remove(connection)
        self._door.forget(own)
        own.close()


def _nobody(rank: int, generation: int, pid: int) -> bool:
    del rank, generation, pid
    return False
