"""A listening socket that anybody can reach, and the connections that came in there."""

import errno
import selectors
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from ._handshake import draw_nonce
from ._json_lines import MAX_LINE, MAX_STRANGERS_LINE, line_of, parse_message

MAX_STRANGERS = 256
HANDSHAKE_SECONDS = 30.0  # for a stranger to say who it is
_AT_ONCE = 64  # connections to accept before the open ones are read again
_REST_SECONDS = 0.2  # without accepting connections when no file descriptors are left for them
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

Message = dict[str, Any]
Who = TypeVar("Who")


class Connection(Generic[Who]):
    """A connection that came in.

    Attributes:
        who: Whom its other end has proved to be; None for a stranger.
        peer: The address of the other end. It was noted at once, because the system forgets it when the connection is reset.
        nonce: The number that was drawn for it, and which its other end was told first.
    """

    def __init__(self, own: socket.socket, peer: str):
        own.setblocking(False)
        self.socket, self.peer, self.nonce = own, peer, draw_nonce()
        self.who: Who | None = None
        self._received = b""

    def read(self) -> Iterator[Message | None]:
        """Yield the messages that have arrived, and None if it is closed or sends what nobody would send who belongs here.

        A stranger may send one line, and nothing more before it is answered.
        """
        longest = MAX_STRANGERS_LINE if self.who is None else MAX_LINE
        try:
            data = self.socket.recv(longest + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        if self.who is None and lines and (len(lines) > 1 or self._received):
            lines, data = [], b""
        for line in lines:
            yield parse_message(line, longest)
        if not data or len(self._received) > longest:
            yield None

    def say(self, message: Mapping[str, Any], seconds: float = 0.0) -> bool:
        """Send a message, for which the other end must make room within some seconds. Returns whether it could be sent."""
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(line_of(message))
            self.socket.setblocking(False)
        except OSError:
            return False
        return True


class Door(Generic[Who]):
    """Accepts connections, greets them, and hears what they say. It is a context manager.

    It keeps only a few strangers at a time and not for long, so that none of them can keep others out. If there are too many, or no
    file descriptors are left, the oldest stranger is closed. So a connection that says nothing makes room for one that does.

    Args:
        listener: A socket that is bound and listens.
        greeting: What every connection is told first, with a number that is drawn for it.
    """

    def __init__(self, listener: socket.socket, greeting: Mapping[str, Any] | None = None):
        listener.setblocking(False)
        self._listener, self._greeting = listener, greeting or {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._connections: dict[socket.socket, Connection[Who]] = {}
        self._strangers: dict[Connection[Who], float] = {}  # when each of them came, oldest first
        self._rests_until: float | None = None
        self.has_been_exhausted = False  # whether descriptors have ever run out

    def wake_by(self, descriptor: int) -> None:
        """Make `poll` return early when there is something to read from a file descriptor."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def poll(self, seconds: float) -> Iterator[tuple[Connection[Who], Message | None]]:
        """Wait until something arrives, and yield each message with its connection.

        None means a message that ends its connection. Whoever hears it, or a stranger that proves nothing, calls `drop`.
        """
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._listener:
                self._let_in()
            elif (connection := self._connections.get(key.fileobj)) is not None:  # type: ignore[call-overload]  # keys are sockets
                for message in connection.read():
                    yield connection, message
                    if connection.socket not in self._connections:  # it was dropped, or let go
                        break
        self._tidy()

    def admit(self, connection: Connection[Who], who: Who) -> None:
        """Keep a connection, because it has said who it is."""
        connection.who = who
        self._strangers.pop(connection, None)

    def known(self) -> list[tuple[Connection[Who], Who]]:
        """The connections that have said who they are, and who that is."""
        return [(each, each.who) for each in self._connections.values() if each.who is not None]

    def let_go(self, connection: Connection[Who]) -> socket.socket:
        """Return the socket of a connection that is somebody else's from now on."""
        if self._connections.pop(connection.socket, None) is not None:
            self._selector.unregister(connection.socket)
        self._strangers.pop(connection, None)
        return connection.socket

    def drop(self, connection: Connection[Who]) -> None:
        """Close a connection. Idempotent."""
        self.let_go(connection).close()

    def __enter__(self) -> "Door[Who]":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the listener and all connections."""
        self._listener.close()
        for connection in list(self._connections.values()):
            self.drop(connection)
        self._selector.close()

    def _let_in(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                own, address = self._listener.accept()
            except OSError as error:  # nobody waits any more, somebody has already left, or no descriptor is left
                if error.errno in _EXHAUSTED:
                    self.has_been_exhausted = True
                    if not self._drop_oldest():
                        self._rest()
                return
            if len(self._strangers) >= MAX_STRANGERS:
                self._drop_oldest()
            connection = self._connections[own] = Connection(own, str(address[0]))
            self._selector.register(own, selectors.EVENT_READ)
            self._strangers[connection] = time.monotonic()
            if not connection.say({**self._greeting, "nonce": connection.nonce}):
                self.drop(connection)

    def _tidy(self) -> None:
        now = time.monotonic()
        while self._strangers and now - next(iter(self._strangers.values())) > HANDSHAKE_SECONDS:
            self._drop_oldest()
        if self._rests_until is not None and now > self._rests_until:
            self._rests_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _drop_oldest(self) -> bool:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self.drop(oldest)
        return oldest is not None

    def _rest(self) -> None:
        """Ignore the listener for a while. It stays ready as long as somebody waits there, so polling would take a whole core."""
        self._rests_until = time.monotonic() + _REST_SECONDS
        self._selector.unregister(self._listener)


def listening(place: Any, family: int = socket.AF_INET) -> socket.socket:
    """A socket that listens at a place, which is a host and port unless the family of addresses is another one.

    Raises:
        OSError: If it cannot listen there.
    """
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the job before may have just closed the port
        listener.bind(place)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener
