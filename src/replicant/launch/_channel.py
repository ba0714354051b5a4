"""The supervisor's end of the connections to its workers: who they are is proved, what they say is small and is JSON."""

import contextlib
import hmac
import json
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from ..cluster._heartbeat import MAX_LINE, SUPERVISOR, WORKER, proof

_HANDSHAKE_SECONDS = 30.0
_MAX_STRANGERS = 64  # connections that have not proved who they are
_READ = 65536

Message = dict[str, Any]


class Connection:
    """One connection; `rank` is None until the other end has proved that it is a worker."""

    def __init__(self, own: socket.socket):
        self.socket = own
        self.nonce = secrets.token_hex(16)
        self.since = time.monotonic()
        self.rank: int | None = None
        self._received = b""

    def read(self) -> Iterator[Message | None]:
        """The messages that have come; None at the end: closed, or nothing that a worker would say."""
        try:
            data = self.socket.recv(_READ)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            yield message if isinstance(message, dict) else None
        if not data or len(self._received) > MAX_LINE:
            yield None

    def send(self, message: Message) -> bool:
        """Send a message; whether it went away."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # also if the other end does not read
            return False
        return True


class Channel:
    """Listens on a free port.

    Args:
        interval: seconds between signs of life that workers are asked for.
        host: of this machine, where to listen.
    """

    def __init__(self, interval: float, host: str = "127.0.0.1"):
        self.key = secrets.token_hex(32)
        self.is_expected: Callable[[int, int, int], bool] = _nobody  # whether rank, generation and process number are of the job
        self._interval = interval
        self._connections: dict[socket.socket, Connection] = {}
        self._listener = socket.socket()
        self._listener.bind((host, 0))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def wake_by(self, descriptor: int) -> None:
        """Also end waiting when something can be read there."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def poll(self, timeout: float) -> Iterator[tuple[int, Message]]:
        """What workers have said, with their ranks, once there is something or the time is over.

        A worker's first message has the kind "hello"; "closed" means that its connection has ended.
        """
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif (connection := self._connections.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                yield from self._hear(connection)
        self._drop_strangers()

    def send(self, rank: int, message: Message) -> bool:
        """Send to a worker; False if it is not connected."""
        return any(c.send(message) for c in list(self._connections.values()) if c.rank == rank)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close everything."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # it has left already
            own, _ = self._listener.accept()
            own.settimeout(1.0)  # for sending; what is read is there
            connection = Connection(own)
            if len(self._connections) - self._num_workers() >= _MAX_STRANGERS or not connection.send({"nonce": connection.nonce}):
                own.close()
                return
            self._connections[own] = connection
            self._selector.register(own, selectors.EVENT_READ)

    def _num_workers(self) -> int:
        return sum(connection.rank is not None for connection in self._connections.values())

    def _hear(self, connection: Connection) -> Iterator[tuple[int, Message]]:
        for message in connection.read():
            if message is not None and connection.rank is not None:
                yield connection.rank, message
            elif message is not None and self._admit(connection, message):
                yield message["rank"], message
            else:
                if connection.rank is not None:
                    yield connection.rank, {"kind": "closed"}
                self._drop(connection)
                return

    def _admit(self, connection: Connection, hello: Message) -> bool:
        """Whether a stranger is a worker of this job; then it is told so."""
        theirs, who = str(hello.get("nonce")), [hello.get(name) for name in ("rank", "generation", "pid")]
        expected = proof(self.key, WORKER, connection.nonce, theirs)
        if not hmac.compare_digest(str(hello.get("proof")).encode(), expected.encode()):
            return False
        if not all(type(number) is int for number in who) or not self.is_expected(*who):  # type: ignore[arg-type]
            return False
        if not connection.send({"proof": proof(self.key, SUPERVISOR, theirs, connection.nonce), "interval": self._interval}):
            return False
        connection.rank = hello["rank"]
        return True

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.socket, None) is not None:
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _drop_strangers(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.rank is None and now - connection.since > _HANDSHAKE_SECONDS:
                self._drop(connection)


def _nobody(rank: int, generation: int, pid: int) -> bool:
    del rank, generation, pid
    return False
