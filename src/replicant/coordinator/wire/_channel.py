"""Messages between a process and those that it started, over socket pairs that they inherit.

No port is open, so nobody needs to be authenticated: this program started whoever holds the other end.
"""

import array
import contextlib
import os
import pickle
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ...errors import LostProcessError

_HEAD = struct.Struct("<QB")
_FDS_BYTES = socket.CMSG_SPACE(8 * array.array("i").itemsize)
_CHUNK = 1 << 20
_CHUNK_IN = 1 << 16


class Closed(Exception):
    """The other end is closed."""


class Channel:
    """One end of a socket pair, for one thread at a time.

    `post` never waits: what does not fit into the socket stays here, in order, until `flush` finds room. `send` waits, and receives
    meanwhile, so that two ends that both send much never wait for each other.

    Attributes:
        num_sent: how many messages were posted.
        num_received: how many messages were handed out. If each message has an answer, the difference is still to come.
    """

    def __init__(self, sock: socket.socket, peer: str):
        sock.setblocking(False)
        self.socket = sock
        self.peer = peer
        self.num_sent = self.num_received = 0
        self._arrival, self._either = select.poll(), select.poll()
        self._arrival.register(sock, select.POLLIN)
        self._either.register(sock, select.POLLIN | select.POLLOUT)
        self._incoming = bytearray()
        self._fds: deque[int] = deque()
        self._messages: deque[tuple[Any, list[int]]] = deque()
        self._outgoing: deque[tuple[memoryview, list[int]]] = deque()
        self._closed = False

    @classmethod
    def pair(cls, first: str, second: str) -> "tuple[Channel, Channel]":
        """Make both ends, each of which names the process at the other."""
        one, other = socket.socketpair()
        for end in (one, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        return cls(one, second), cls(other, first)

    @property
    def has_news(self) -> bool:
        """Whether something was received, perhaps while sending, and has not been handed out."""
        return bool(self._messages) or self._closed

    @property
    def outgoing_bytes(self) -> int:
        """How many posted bytes did not fit into the socket yet."""
        return sum(len(data) for data, _ in self._outgoing)

    def fileno(self) -> int:
        """The file descriptor, for select."""
        return self.socket.fileno()

    def post(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message and copies of file descriptors, without waiting. Raises Closed if the other end is closed."""
        self.num_sent += 1
        self._outgoing.append((memoryview(_framed(message, len(fds))), [os.dup(fd) for fd in fds]))
        self.flush()

    def post_all(self, messages: Sequence[Any]) -> None:
        """Send several messages together, without waiting. Raises Closed if the other end is closed."""
        if messages:
            self.num_sent += len(messages)
            self._outgoing.append((memoryview(b"".join(map(_framed, messages))), []))
            self.flush()

    def flush(self) -> None:
        """Send as much of what was posted as fits. Raises Closed if the other end is closed."""
        while self._outgoing:
            data, fds = self._outgoing[0]
            try:
                sent = socket.send_fds(self.socket, [data[:_CHUNK]], fds) if fds else self.socket.send(data[:_CHUNK])
            except BlockingIOError:
                return
            except OSError as error:
                self._forget_outgoing()
                raise Closed(self.peer) from error
            self._outgoing[0] = data[sent:], []
            _close(fds)
            if sent == len(data):
                self._outgoing.popleft()

    def send(self, message: Any, fds: Sequence[int] = (), *, seconds: float | None = None) -> None:
        """Send a message and file descriptors, and wait until they have left.

        Args:
            message: any object that can be pickled.
            fds: the file descriptors, of which copies are sent.
            seconds: the most seconds to wait; None sets no limit.

        Raises:
            Closed: if the other end is closed.
            LostProcessError: after `seconds`. The message stays posted.
        """
        self.post(message, fds)
        deadline = None if seconds is None else time.monotonic() + seconds
        while self._outgoing:
            left = None if deadline is None else deadline - time.monotonic()
            events = self._either.poll(None if left is None else max(0.0, 1000 * left))
            if not events:
                raise LostProcessError(f"{self.peer} received nothing for {seconds:.0f} s. Check whether it has been stopped.")
            if events[0][1] & select.POLLIN:
                self._take_in()
                if self._closed:
                    self._forget_outgoing()
                    raise Closed(self.peer)
            self.flush()

    def poll(self) -> bool:
        """Receive what has arrived. Returns True if there is a message, or the other end is closed."""
        if not self._messages and not self._closed:
            self._take_in()
        return bool(self._messages) or self._closed

    def next(self) -> tuple[Any, list[int]] | None:
        """The next received message with its file descriptors, or None. Raises Closed after the last one."""
        if self._messages:
            self.num_received += 1
            return self._messages.popleft()
        if self._closed:
            raise Closed(self.peer)
        return None

    def receive(self, seconds: float, doing: str) -> tuple[Any, list[int]]:
        """Wait for the next message.

        Args:
            seconds: the most seconds to wait.
            doing: what the caller is doing, for the error.

        Raises:
            Closed: if the other end is closed.
            LostProcessError: after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not self._messages and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0 or not (self._either if self._outgoing else self._arrival).poll(1000 * left):
                raise LostProcessError(
                    f"{self.peer} did not answer within {seconds:.0f} s while {doing}. Check whether it has been stopped."
                )
            with contextlib.suppress(Closed):  # noticed below, once all of its messages have been received
                self.flush()
            self._take_in()
        message = self.next()
        assert message is not None
        return message

    def close(self) -> None:
        """Close this end. Posted messages that have not left are lost."""
        self._closed = True
        self._forget_outgoing()
        self.socket.close()

    def _forget_outgoing(self) -> None:
        for _, fds in self._outgoing:
            _close(fds)
        self._outgoing.clear()

    def _take_in(self) -> None:
        try:
            data, ancillary, _, _ = self.socket.recvmsg(_CHUNK_IN, _FDS_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for _, _, sent in ancillary:
            self._fds.extend(array.array("i", sent))
        if not data:
            self._closed = True
            return
        if self._incoming:
            self._incoming += data
            del self._incoming[: self._unpack(self._incoming)]
        else:
            self._incoming += data[self._unpack(data) :]

    def _unpack(self, data: bytes | bytearray) -> int:
        """Unpack the complete messages in `data`. Returns where they end."""
        start = 0
        with memoryview(data) as view:
            while len(data) - start >= _HEAD.size:
                length, num_fds = _HEAD.unpack_from(data, start)
                end = start + _HEAD.size + length
                if len(data) < end:
                    break
                try:
                    message = pickle.loads(view[start + _HEAD.size : end])  # noqa: S301 - from a process of ours
                    self._messages.append((message, [self._fds.popleft() for _ in range(num_fds)]))
                except Exception:  # noqa: BLE001 - malformed data, which none of our processes sends: hang up
                    self._closed = True
                    return len(data)
                start = end
        return start


def _framed(message: Any, num_fds: int = 0) -> bytes:
    body = pickle.dumps(message, protocol=5)
    return _HEAD.pack(len(body), num_fds) + body


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
