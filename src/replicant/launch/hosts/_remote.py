"""The launcher's side of the agents: what each of them has said, and the workers that they run."""

import base64
import contextlib
import itertools
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .._environment import Place
from ..team._processes import Worker
from ._facts import received
from ._wire import Message, Wire

LOST = -signal.SIGKILL  # the exit code of a worker whose host is lost
_END_SECONDS = 5.0  # for a killed worker, or for ssh, to end
_LAST_WORDS = 600  # characters of what ssh has printed

_numbers = itertools.count()  # of all workers of all hosts


class Link:
    """The connection to the agent of one host.

    Args:
        name: How the user calls the host.
        wire: The connection.
        patience: The seconds after which an agent that is not heard counts as lost.
        process: The process through which it is connected, if any.
        errors: The file that has what this process has printed.
    """

    def __init__(
        self,
        name: str,
        wire: Wire,
        patience: float,
        process: "subprocess.Popen[bytes] | None" = None,
        errors: BinaryIO | None = None,
    ):
        self.name, self.wire = name, wire
        self.said: dict[str, Message] = {}  # the last message of each kind that answers a question
        self.lost = ""  # why the agent is lost, if it is
        self.heard = time.monotonic()  # when its last message came
        self.stopped: set[int] = set()
        self.workers: dict[int, RemoteWorker] = {}
        self.patience, self._process, self._errors = patience, process, errors
        self._last_beat = 0

    @property
    def host(self) -> str:
        """The name of the host, as it calls itself once it has been heard."""
        return str(self.said["facts"]["host"]) if "facts" in self.said else self.name

    def tell(self, **message: Any) -> None:
        """Send a message."""
        if not self.lost:
            self.wire.send_now(**message)

    def tell_heard(self) -> None:
        """Tell the agent that the launcher is there, and which of its beats it has heard. Any thread may do this."""
        self.wire.send(kind="beat", heard=self._last_beat)

    def listen(self) -> list[Message]:
        """Take in what the agent has said. Returns the messages that neither answer a question nor are about a worker."""
        others: list[Message] = []
        for message in [] if self.lost else self.wire.receive():
            self.heard = time.monotonic()
            try:
                self._take(message, others)
            except Exception as error:  # noqa: BLE001 - whatever one agent says, the launcher goes on
                self.lose(f"{self.name} has said what makes no sense ({error!r})")
                break
        if not self.lost and not self.wire.is_open:
            self.lose(self._why())
        elif not self.lost and time.monotonic() - self.heard > self.patience:
            self.lose(f"nothing was heard from {self.name} for {self.patience:g} s")
        return others

    def _take(self, message: Message, others: list[Message]) -> None:
        kind, worker = message["kind"], self.workers.get(message.get("worker", -1))
        if kind == "beat":
            self._last_beat, self.stopped = message["number"], set(message["stopped"])
        elif worker is not None:
            worker.hear(message)
        elif kind in ("facts", "ready", "reached"):
            self.said[kind] = received(message) if kind == "facts" else message
        else:
            others.append(message)

    def lose(self, reason: str) -> None:
        """Give the agent up. Its workers count as killed; they are by the time that the agent would have to be heard."""
        self.lost = reason
        self.close(0.0)
        for worker in self.workers.values():
            worker.lose(reason)
        self.workers.clear()

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Close the connection, and end the process that made it, which first has some seconds to end by itself. Idempotent."""
        self.wire.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        """What the process of this connection has printed at last."""
        if self._errors is None:
            return ""
        with contextlib.suppress(OSError, ValueError):
            self._errors.seek(0)
            return self._errors.read().decode(errors="replace").strip().rstrip(".")[-_LAST_WORDS:]
        return ""

    def exit_code(self) -> int | None:
        """The exit code of the process of this connection, which is about to end."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_SECONDS)
        return None

    def _why(self) -> str:
        words = self.last_words() if self.exit_code() is not None else ""
        why = f": {words or self.wire.problem}" if words or self.wire.problem else ""
        return f"the connection to {self.name} is lost{why}"


class RemoteWorker(Worker):
    """A worker on any host, as `Worker` is one of the launcher's own. Its `pid` is 0 as long as it is not known."""

    def __init__(
        self, place: Place, link: Link, log: Path, *, local: tuple[int, int], more: Mapping[str, str], pump: Callable[[], None]
    ):
        self.rank, self.log, self.code, self.signals, self.pid = place.rank, log, None, set(), 0
        self.lost = ""  # why its host is lost, if it is
        self.problem = ""  # why it could not be started
        self._link, self._number, self._pump = link, next(_numbers), pump
        link.workers[self._number] = self
        told = {name: value for name, value in vars(place).items() if name not in ("key", "local")}
        link.tell(kind="start", worker=self._number, place=told, local=local, more=dict(more))
        if link.lost:
            self.lose(link.lost)

    @property
    def host(self) -> str:
        """The name of its host."""
        return self._link.host

    def hear(self, message: Message) -> None:
        """Take in what its agent says about it."""
        if message["kind"] == "started":
            self.pid = message["pid"]
        elif message["kind"] == "log":
            with self.log.open("ab") as file:
                file.write(base64.b64decode(message["text"]))
        elif message["kind"] == "ended":
            self._end(message["code"])
        elif message["kind"] == "cannot":
            self.problem = message["problem"]
            self._end(1)

    def lose(self, reason: str) -> None:
        """Note that its host is lost."""
        if self.code is None:
            self.lost, self.code = reason, LOST

    def poll(self) -> bool:
        """Whether it is known that it has ended. Its team takes in what its agent says."""
        return self.code is not None

    def is_stopped(self) -> bool:
        """Whether it is stopped, for example by SIGSTOP."""
        return self._number in self._link.stopped

    def signal(self, number: int) -> None:
        """Send it a signal. SIGKILL goes to its whole group."""
        if not self.poll():
            self.signals.add(number)
            self._link.tell(kind="signal", worker=self._number, number=int(number))

    def kill(self) -> None:
        """Kill it, and wait until it has ended, or until its host must count as lost."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + _END_SECONDS
        while not self.poll():
            self._pump()
            if time.monotonic() > deadline:
                self._link.lose(f"{self._link.name} has not ended rank {self.rank} within {_END_SECONDS:g} s")
            time.sleep(0.005)

    def _end(self, code: int) -> None:
        self.code = code
        self._link.workers.pop(self._number, None)
