"""The supervisor's end of the connections to its workers. Workers prove who they are, and send short messages in JSON."""

import secrets
import socket
from collections.abc import Callable, Iterator
from typing import Self

from ...cluster.wire._handshake import is_proved, nonce_of, proof
from ...cluster.wire._listener import Connection, Door, Message
from ...cluster.wire._supervisor import SUPERVISOR, WORKER

_SEND_SECONDS = 1.0  # that a worker may take to make room for a message
_TEXTS = ("kind", "host", "phase", "text", "path")
_COUNTS = ("rank", "generation", "pid", "step")
_NUMBERS = ("at", "waited", "seconds")
_GREATEST = 1 << 53  # that a float can count to
_REFUSAL = "its key, or its rank, generation and process number, are not of this job"


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
        self._of_rank: dict[int, list[Connection[int]]] = {}  # those that have proved who they are, the oldest first
        listener = socket.socket()
        listener.bind((host, 0))
        listener.listen(1024)
        self.address = f"{host}:{listener.getsockname()[1]}"
        self._door: Door[int] = Door(listener)
        self.wake_by = self._door.wake_by

    def poll(self, timeout: float) -> Iterator[tuple[int, Message]]:
        """Wait for messages, or until the time is over, and yield each of them with the rank of its worker.

        A worker's first message has the kind "hello". The kind "closed" means that its connection has ended.
        """
        for connection, message in self._door.poll(timeout):
            rank = connection.who
            if message is not None and _makes_sense(message) and (rank is not None or self._admit(connection, message)):
                yield message["rank"] if rank is None else rank, message
                continue
            self._door.drop(connection)
            if rank is not None:
                self._of_rank[rank].remove(connection)
                yield rank, {"kind": "closed"}

    def send(self, rank: int, message: Message) -> bool:
        """Send a message to a worker. Returns False if it is not connected."""
        return any(connection.say(message, _SEND_SECONDS) for connection in list(self._of_rank.get(rank, ())))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the listener and all connections."""
        self._door.close()

    def _admit(self, connection: Connection[int], hello: Message) -> bool:
        """Whether a stranger is a worker of this job. It is told either way: another worker should not try again."""
        theirs, who = nonce_of(hello), [hello.get(name) for name in ("rank", "generation", "pid")]
        if (
            not is_proved(hello, proof(self.key, WORKER, connection.nonce, theirs))
            or hello["kind"] != "hello"
            or None in who
            or not self.is_expected(*who)  # type: ignore[arg-type]  # all are int
        ):
            connection.say({"refused": _REFUSAL})
            return False
        rank: int = hello["rank"]
        if not connection.say({"proof": proof(self.key, SUPERVISOR, theirs, connection.nonce), **self._terms}):
            return False
        self._of_rank.setdefault(rank, []).append(connection)
        self._door.admit(connection, rank)
        return True


def _makes_sense(message: Message) -> bool:
    """Whether a message has a kind, and whatever else it has is what a worker would say.

    >>> _makes_sense({"kind": "beat", "step": 1}), _makes_sense({"kind": "beat", "step": 1 << 60}), _makes_sense({"kind": ["beat"]})
    (True, False, False)
    """
    texts, counts, numbers = ([message[name] for name in names if name in message] for names in (_TEXTS, _COUNTS, _NUMBERS))
    return (
        "kind" in message
        and all(isinstance(each, str) for each in texts)
        and all(type(each) is int for each in counts)
        and all(type(each) in (int, float) and abs(each) <= _GREATEST for each in (*counts, *numbers))
    )


def _nobody(rank: int, generation: int, pid: int) -> bool:
    del rank, generation, pid
    return False
