"""Messages between a launcher and its agent on another host: lines of JSON, each signed with the key of their connection.

A line is a number that proves who has written it and where in the conversation, a space, and the message. So nobody without the key
can write one, repeat one, or leave one out unseen.
"""

import hmac
import json
import os
import select
import threading
import time
from typing import Any

from ..._untrusted_json import read_json
from ...cluster.wire._handshake import code_of

LAUNCHER, AGENT = "launcher", "agent"
SEND_SECONDS = 5.0  # that the other end may leave no room for a message
_READ = 1 << 18
_MAX_LINE = 1 << 22
_MAX_NOISE = 1 << 16
_PROOF = 32  # characters

Message = dict[str, Any]


class Wire:
    """One end of a connection.

    Args:
        reader: The file descriptor to read from.
        writer: The one to write to. It may be the same.
        key: The key of this connection.
        side: Who this end is, `LAUNCHER` or `AGENT`.

    Both descriptors become those of the wire, which closes them.
    """

    def __init__(self, reader: int, writer: int, key: str, side: str):
        self.reader, self.writer = reader, writer
        self.is_open = True
        self.problem = ""  # why it is closed, if the other end has not simply closed it
        self.noise: list[bytes] = []  # lines before the first message, which a host prints when somebody logs in
        self._key, self._side = key, side
        self._read = self._written = 0  # messages
        self._received, self._unsent = b"", b""
        self._lock = threading.Lock()
        self._descriptors = {reader, writer}
        for descriptor in self._descriptors:
            os.set_blocking(descriptor, False)

    @property
    def unsent(self) -> int:
        """The bytes that wait until the other end takes them."""
        return len(self._unsent)

    def receive(self) -> list[Message]:
        """The messages that have arrived. If the other end is closed, or is no other end of this wire, it is not open any more."""
        with self._lock:
            data = self._take() if self.is_open else b""
            *lines, self._received = (self._received + data).split(b"\n")
            if len(self._received) > _MAX_LINE:
                self._end("it has sent a line without an end")
            return [message for line in lines if (message := self._check(line)) is not None]

    def send(self, **message: Any) -> None:
        """Send a message as soon as the other end takes it. Nothing happens if the wire is closed."""
        with self._lock:
            text = json.dumps(message)
            self._unsent += f"{self._proof(self._side, self._written, text)} {text}\n".encode()
            self._written += 1
            self._flush()

    def send_bare(self, line: bytes) -> None:
        """Send a line that is not signed, before any message."""
        with self._lock:
            self._unsent += line
            self._flush()

    def send_now(self, **message: Any) -> None:
        """Send a message. If the other end does not take it within `SEND_SECONDS`, the wire is not open any more."""
        self.send(**message)
        deadline = time.monotonic() + SEND_SECONDS
        poll = select.poll()
        poll.register(self.writer, select.POLLOUT)
        while self.is_open and self._unsent:
            if time.monotonic() > deadline:
                with self._lock:
                    self._end(f"it has read nothing for {SEND_SECONDS:g} s")
                return
            poll.poll(100)
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the other end takes it."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Close the descriptors. Idempotent. Only the thread that receives may do this."""
        with self._lock:
            self._end("")
            descriptors, self._descriptors = self._descriptors, set()
            for descriptor in descriptors:
                os.close(descriptor)

    def _take(self) -> bytes:
        try:
            data = os.read(self.reader, _READ)
        except BlockingIOError:
            return b""
        except OSError as error:
            self._end(error.strerror or str(error))
            return b""
        if not data:
            self._end("")
        return data

    def _flush(self) -> None:
        while self.is_open and self._unsent:
            try:
                self._unsent = self._unsent[os.write(self.writer, self._unsent) :]
            except BlockingIOError:
                return
            except OSError as error:
                self._end(error.strerror or str(error))

    def _end(self, problem: str) -> None:
        if self.is_open:
            self.is_open, self.problem = False, problem

    def _check(self, line: bytes) -> Message | None:
        """The message of a line, or None if it is not a message of the other end."""
        number, _, text = line.partition(b" ")
        other = AGENT if self._side == LAUNCHER else LAUNCHER
        expected = self._proof(other, self._read, text.decode(errors="replace"))
        if hmac.compare_digest(number, expected.encode()):
            self._read += 1
            try:
                message = read_json(text, _MAX_LINE, halves=True)  # a command may name such files
                if isinstance(message, dict):
                    return message
                self._end(f"a line came that is not an object: {message!r:.200}")
            except ValueError as error:
                self._end(f"a line came that {error}")
            return None
        if self._read:
            self._end("a line came that is not signed with the key of this connection")
        elif sum(map(len, self.noise)) < _MAX_NOISE:
            self.noise.append(line)
        return None

    def _proof(self, side: str, number: int, text: str) -> str:
        return code_of(self._key, f"{side}:{number}:{text}")[:_PROOF]


def wire_key(key: str, *nonces: str) -> str:
    """The key of one connection, made from that of the job.

    >>> wire_key("key", "1") == wire_key("key", "2")
    False
    """
    return _derived(key, "wire", *nonces)


def workers_key(key: str, run: str) -> str:
    """The key of the workers of one run, made from that of the job. No connection carries it."""
    return _derived(key, "workers", run)


def _derived(key: str, *parts: str) -> str:
    return code_of(key, "\0".join(parts))
