"""Where node 0 lets the other nodes in: a listener, and the handshake in which both ends prove that they know the job's key."""

import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ...cluster.wire._handshake import is_proved, nonce_of, proof
from ...cluster.wire._listener import HANDSHAKE_SECONDS, Connection, Door, Message
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
        self._door: Door[Wire] = Door(listener)
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
        for wire in self._peers:
            wire.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            for connection, hello in self._door.poll(_TICK):
                if hello is None or not self._shake_hands(connection, hello):
                    self._door.drop(connection)
                    self._tell_of(connection.peer)
            for wire in list(self._peers):
                self._judge(wire)

    def _shake_hands(self, connection: Connection[Wire], hello: Message) -> bool:
        """Whether a stranger has the key. Then it is told the terms, and has a wire."""
        theirs, nonce = nonce_of(hello), connection.nonce
        if not is_proved(hello, proof(self._key, AGENT, nonce, theirs)):
            connection.say({"refused": OTHER_KEY})
            return False
        if connection.say({"proof": proof(self._key, LAUNCHER, theirs, nonce), **self._terms}):
            descriptor = self._door.let_go(connection).detach()
            wire = Wire(descriptor, descriptor, wire_key(self._key, nonce, theirs), LAUNCHER)
            self._peers[wire] = (connection.peer, time.monotonic())
        else:  # it has the key, and has left
            self._door.drop(connection)
        return True

    def _judge(self, wire: Wire) -> None:
        """Let a node in that has said who it is, if it fits."""
        peer, since = self._peers[wire]
        message = next((each for each in wire.receive() if each.get("kind") == "facts"), None)
        if message is None and wire.is_open and time.monotonic() - since < HANDSHAKE_SECONDS:
            return
        del self._peers[wire]
        try:
            problem = "it has not said who it is" if message is None else self._admit({**message, "peer": peer}, wire)
        except Exception as error:  # noqa: BLE001 - whatever one node says, the others are let in
            problem = f"what it says about itself makes no sense: {error!r}"
        if not problem:
            wire.send(kind="welcome")
        else:
            self._note(f"a node at {peer} was turned away: {problem}")
            wire.send(kind="refused", problem=problem)
            _close_politely(wire)

    def _tell_of(self, peer: str) -> None:
        """Tell the user of a stranger."""
        if peer not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(peer)
            self._note(f"somebody at {peer} has connected without the key of this job (REPLICANT_JOB_KEY), and was turned away.")


def _close_politely(wire: Wire) -> None:
    """Close a wire once the other end has read the last message, or after a moment: unread input would make TCP drop it."""
    deadline = time.monotonic() + 1.0
    while wire.is_open and time.monotonic() < deadline:
        select.select([wire.reader], [], [], _TICK)
        wire.receive()
    wire.close()
