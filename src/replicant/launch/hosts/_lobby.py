"""Where node 0 lets the other nodes in: a listener, and the handshake in which both ends prove that they know the job's key."""

import hmac
import json
import secrets
import select
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ...cluster._door import HANDSHAKE_SECONDS, Door
from ...cluster._heartbeat import proof
from ...cluster._lines import MAX_STRANGERS_LINE, parse_message
from ._wire import AGENT, LAUNCHER, Wire, wire_key

OTHER_KEY = "its REPLICANT_JOB_KEY is not that of this job"
_TICK = 0.1
_MOST_REPORTED = 100  # addresses of strangers


class Lobby:
    """Lets nodes in, in a thread of its own.

    Args:
        listener: A socket that listens.
        key: The key of the job.
        terms: What every node is told once it has proved that it knows the key.
        admit: Decides about a node by its facts and address, and keeps its wire. Returns why it is turned away, or "".
        note: Takes what the user should know, in this thread.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: str,
        terms: dict[str, Any],
        admit: Callable[[dict[str, Any], Wire], str],
        note: Callable[[str], None],
    ):
        self._key, self._terms, self._admit, self._note = key, terms, admit, note
        self._selector = selectors.DefaultSelector()
        self._door = Door(listener, self._selector, self._forget)
        self._nonces: dict[socket.socket, str] = {}
        self._received: dict[socket.socket, bytes] = {}
        self._peers: dict[Wire, tuple[str, float]] = {}  # nodes that have the key and have not said who they are
        self._reported: set[str] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replicant-lobby", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._closing.set()
        self._thread.join()
        self._door.close()
        for own in list(self._nonces):
            self._forget(own)
        for wire in self._peers:
            wire.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(_TICK):
                own: Any = key.fileobj
                if self._door.is_at(own):
                    self._greet()
                elif own in self._nonces:
                    self._hear(own)
            self._door.tidy()
            self._judge()

    def _greet(self) -> None:
        for own in self._door.let_in():
            own.setblocking(False)
            self._nonces[own], self._received[own] = secrets.token_hex(16), b""
            self._selector.register(own, selectors.EVENT_READ)
            self._say(own, {"nonce": self._nonces[own]})

    def _hear(self, own: socket.socket) -> None:
        try:
            data = own.recv(MAX_STRANGERS_LINE + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received[own] += data
        line, end, rest = self._received[own].partition(b"\n")
        if not end and data and len(line) <= MAX_STRANGERS_LINE:
            return
        hello = parse_message(line) if end and not rest else None
        if hello is None:
            self._turn_away(own)
            return
        theirs, nonce = str(hello.get("nonce")), self._nonces[own]
        if not hmac.compare_digest(str(hello.get("proof")).encode(), proof(self._key, AGENT, nonce, theirs).encode()):
            self._say(own, {"refused": OTHER_KEY})
            self._turn_away(own)
            return
        self._say(own, {"proof": proof(self._key, LAUNCHER, theirs, nonce), **self._terms})
        peer = own.getpeername()[0]
        self._leave_door(own)
        wire = Wire(descriptor := own.detach(), descriptor, wire_key(self._key, nonce, theirs), LAUNCHER)
        self._peers[wire] = (peer, time.monotonic())

    def _judge(self) -> None:
        """Let those in who have said who they are, if they fit."""
        for wire, (peer, since) in list(self._peers.items()):
            message = next((each for each in wire.receive() if each.get("kind") == "facts"), None)
            if message is None and wire.is_open and time.monotonic() - since < HANDSHAKE_SECONDS:
                continue
            del self._peers[wire]
            problem = "it has not said who it is" if message is None else self._admit({**message, "peer": peer}, wire)
            if not problem:
                wire.send(kind="welcome")
            else:
                self._note(f"a node at {peer} was turned away: {problem}")
                wire.send(kind="refused", problem=problem)
                _close_politely(wire)

    def _say(self, own: socket.socket, message: dict[str, Any]) -> None:
        try:
            own.sendall(json.dumps(message).encode() + b"\n")
        except OSError:  # it is gone, or does not read; then it proves nothing
            return

    def _turn_away(self, own: socket.socket) -> None:
        try:
            peer = own.getpeername()[0]
        except OSError:  # it is gone
            peer = ""
        self._forget(own)
        if peer and peer not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(peer)
            self._note(f"somebody at {peer} has connected without the key of this job (REPLICANT_JOB_KEY), and was turned away.")

    def _leave_door(self, own: socket.socket) -> None:
        self._selector.unregister(own)
        self._door.admit(own)
        del self._nonces[own], self._received[own]

    def _forget(self, own: socket.socket) -> None:
        if own in self._nonces:
            self._leave_door(own)
        own.close()


def _close_politely(wire: Wire) -> None:
    """Close a wire once the other end has read the last message, or after a moment: unread input would make TCP drop it."""
    deadline = time.monotonic() + 1.0
    while wire.is_open and time.monotonic() < deadline:
        select.select([wire.reader], [], [], _TICK)
        wire.receive()
    wire.close()
