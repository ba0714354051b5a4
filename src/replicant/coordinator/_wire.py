"""Messages between a process and those it started, over socket pairs that they inherited.

No port is open, so there is nobody to authenticate: whoever holds the other end was started by this program.
"""

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
_MAX_FDS = 8
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

    def fileno(self) -> int:
        """For select."""
        return self.socket.fileno()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message, with file descriptors. Raises Closed if nobody is there."""
        self.send_bytes(pickle.dumps(message, protocol=5), fds)

    def send_bytes(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message that has been pickled already."""
        data = memoryview(_HEAD.pack(len(body), len(fds)) + body)
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
        while not self.poll():
            left = deadline - time.monotonic()
            if left <= 0:
                raise LostProcessError(f"{self.peer} did not answer within {seconds:.0f} s while {doing}. Has it been stopped?")
            select.select([self.socket], [], [], left)
        message = self.next()
        assert message is not None
        return message

    def close(self) -> None:
        """Hang up."""
        self._closed = True
        self.socket.close()

    def _take_in(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, _CHUNK_IN, _MAX_FDS)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        self._fds.extend(fds)
        if not data:
            self._closed = True
            return
        self._incoming += data
        while len(self._incoming) >= _HEAD.size:
            length, num_fds = _HEAD.unpack_from(self._incoming)
            end = _HEAD.size + length
            if len(self._incoming) < end:
                break
            message = pickle.loads(memoryview(self._incoming)[_HEAD.size : end])  # noqa: S301 - from a process of ours
            del self._incoming[:end]
            self._messages.append((message, [self._fds.popleft() for _ in range(num_fds)]))
