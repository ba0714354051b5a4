"""Messages between a process and those it started, over socket pairs that they inherited.

No port is open, so there is nobody to authenticate: whoever holds the other end was started by this program.
"""

import array
import pickle
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..errors import LostProcessError

_HEAD = struct.Struct("<QB")
_FDS_BYTES = socket.CMSG_SPACE(8 * array.array("i").itemsize)
_CHUNK = 1 << 20
_CHUNK_IN = 1 << 16


class Closed(Exception):
    """The other end is gone."""


class Channel:
    """One end of a socket pair. Used by one thread at a time.

    While it waits to send it takes in what the other end sends, so two ends that both send much never wait for each other.
    """

    def __init__(self, sock: socket.socket, peer: str):
        sock.setblocking(False)
        self.socket = sock
        self.peer = peer
        self._arrival = select.poll()
        self._arrival.register(sock, select.POLLIN)
        self._incoming = bytearray()
        self._fds: deque[int] = deque()
        self._messages: deque[tuple[Any, list[int]]] = deque()
        self._closed = False

    @classmethod
    def pair(cls, first: str, second: str) -> "tuple[Channel, Channel]":
        """Both ends, each named for the process at the other."""
        one, other = socket.socketpair()
        for end in (one, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        return cls(one, second), cls(other, first)

    @property
    def has_news(self) -> bool:
        """Whether something was taken in, maybe while sending, and nobody has asked for it."""
        return bool(self._messages) or self._closed

    def fileno(self) -> int:
        """For select."""
        return self.socket.fileno()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message, with file descriptors. Raises Closed if nobody is there."""
        self._send_bytes(_framed(message, len(fds)), fds)

    def send_all(self, messages: Sequence[Any]) -> None:
        """Send several messages together. Raises Closed if nobody is there."""
        self._send_bytes(b"".join(map(_framed, messages)))

    def _send_bytes(self, framed: bytes, fds: Sequence[int] = ()) -> None:
        data = memoryview(framed)
        while data:
            try:
                sent = socket.send_fds(self.socket, [data[:_CHUNK]], list(fds)) if fds else self.socket.send(data[:_CHUNK])
            except BlockingIOError:
                readable, _, _ = select.select([self.socket], [self.socket], [])
                if readable:
                    self._take_in()
                    if self._closed:
                        raise Closed(self.peer) from None
                continue
            except OSError as error:
                raise Closed(self.peer) from error
            fds = ()
            data = data[sent:]

    def poll(self) -> bool:
        """Take in what has arrived. True if there is a message, or the other end is gone."""
        if not self._messages and not self._closed:
            self._take_in()
        return bool(self._messages) or self._closed

    def next(self) -> tuple[Any, list[int]] | None:
        """A message that has been taken in, with its file descriptors; None if there is none. Raises Closed after the last one."""
        if self._messages:
            return self._messages.popleft()
        if self._closed:
            raise Closed(self.peer)
        return None

    def receive(self, seconds: float, doing: str) -> tuple[Any, list[int]]:
        """The next message. Raises Closed, or LostProcessError after `seconds`."""
        deadline = time.monotonic() + seconds
        while not self._messages and not self._closed:
            left = deadline - time.monotonic()
            if left <= 0 or not self._arrival.poll(1000 * left):
                raise LostProcessError(f"{self.peer} did not answer within {seconds:.0f} s while {doing}. Has it been stopped?")
            self._take_in()
        message = self.next()
        assert message is not None
        return message

    def close(self) -> None:
        """Hang up."""
        self._closed = True
        self.socket.close()

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
        """Take the whole messages out of `data`. Returns where they end."""
        start = 0
        with memoryview(data) as view:
            while len(data) - start >= _HEAD.size:
                length, num_fds = _HEAD.unpack_from(data, start)
                end = start + _HEAD.size + length
                if len(data) < end:
                    break
                message = pickle.loads(view[start + _HEAD.size : end])  # noqa: S301 - from a process of ours
                start = end
                self._messages.append((message, [self._fds.popleft() for _ in range(num_fds)]))
        return start


def _framed(message: Any, num_fds: int = 0) -> bytes:
    body = pickle.dumps(message, protocol=5)
    return _HEAD.pack(len(body), num_fds) + body
