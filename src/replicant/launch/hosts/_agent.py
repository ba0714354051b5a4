"""The agent: starts the workers of its host for a launcher, hands on what they print and how they end, and ends them.

It goes on only while it is connected. Its beats are numbered, and the launcher says which it has heard. If the last one that was
heard is too old, whatever the reason, the agent kills its workers: sooner than the launcher gives them up, so that two groups never
run at once. The same happens if the connection is closed. If the agent itself is killed, the kernel and its guard end the workers.
"""

import base64
import dataclasses
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ...cluster._addresses import split_address
from ...errors import ConfigurationError
from .._environment import Place, accelerators_of, worker_environment
from ..console._signals import Signals
from ..team._processes import Guard, Worker
from ._facts import facts_here
from ._wire import AGENT, Message, Wire, wire_key, workers_key

SHARE = 0.9  # of the launcher's patience
_BEATS = 10  # while the launcher is patient
_LONGEST_BEAT = 1.0  # seconds
_TICK = 0.05
_CHUNK = 1 << 17  # bytes of a log in one message
_REACH_SECONDS = 5.0  # for the launcher to be reached at its other ports
_KEY_SECONDS = 60.0  # for the launcher to send the key


@dataclasses.dataclass(frozen=True)
class Work:
    """What workers on this host run.

    Args:
        argv: Their command line.
        environ: The environment from which theirs are made.
        devices_per_worker: The devices of each worker, if that is set.
        start: The seconds to wait for the other workers.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    devices_per_worker: int | None
    start: float


class _Started:
    """A worker and how much of its output was sent."""

    def __init__(self, worker: Worker, log: Path):
        self.worker = worker
        self._file = log.open("rb", buffering=0)
        log.unlink()  # it vanishes with the worker and this process

    def read(self) -> bytes:
        return self._file.read(_CHUNK) or b""

    def close(self) -> None:
        self._file.close()


class Agent:
    """The agent of one connection.

    Args:
        wire: The connection.
        key: The key with which workers prove to the launcher that they are of its job.
        patience: The seconds after which the launcher gives up an agent that it does not hear.
        work: What the workers run. By default the launcher says it.
        about: More facts for the launcher.
        welcome: What to do once the launcher has said that this host may take part.
    """

    def __init__(
        self,
        wire: Wire,
        key: str,
        patience: float,
        *,
        work: Work | None = None,
        about: Mapping[str, Any] | None = None,
        welcome: Callable[[], None] = lambda: None,
    ):
        self.end: Message | None = None  # the launcher's last message, if it has ended the job
        self.asked: list[int] = []  # the signals by which the user has ended the job here
        self._wire, self._key, self._patience, self._work = wire, key, patience, work
        self._may_be_told, self._welcome = work is None, welcome
        self._started: dict[int, _Started] = {}
        self._beats: dict[int, float] = {}  # when each was sent
        self._number = 0
        self._heard = time.monotonic()  # when the last beat was sent that the launcher has heard
        wire.send(kind="facts", **facts_here(), **(about or {}))

    def serve(self, signals: Signals | None = None) -> str:
        """Do what the launcher says until it ends the job or cannot be heard any more. Then no worker is left.

        Args:
            signals: Those by which the user ends the job here. The launcher is told of the first; a second one ends this host's
                part.

        Returns:
            Why the agent has lost its launcher, or "" if the job has ended.
        """
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replicant-agent-")))
            self._guard = stack.enter_context(Guard())
            stack.callback(self._kill_all)
            while self.end is None and self._wire.is_open:
                self._wait(None if signals is None else signals.fileno())
                for message in self._wire.receive():
                    self._obey(message)
                for number in [] if signals is None else signals.take():
                    self._wire.send(kind="asked", number=number)
                    self.asked.append(number)
                if len(self.asked) > 1 or (self.asked and not self._started):
                    return "the user has ended it"
                if problem := self._beat():
                    return problem
                self._watch()
                self._wire.flush()
        return "" if self.end is not None else f"the connection is lost{f': {self._wire.problem}' * bool(self._wire.problem)}"

    def _wait(self, wake: int | None) -> None:
        poll = select.poll()
        poll.register(self._wire.reader, select.POLLIN)
        if self._wire.unsent:
            poll.register(self._wire.writer, select.POLLOUT | (select.POLLIN if self._wire.writer == self._wire.reader else 0))
        if wake is not None:
            poll.register(wake, select.POLLIN)
        poll.poll(1000 * _TICK)

    def _beat(self) -> str:
        """Send a beat if it is time to. Returns why the agent must end, if it must."""
        now = time.monotonic()
        if now - self._heard > SHARE * self._patience:
            return f"the launcher has heard nothing of it for {now - self._heard:.0f} s"
        if not self._beats or now - self._beats[self._number] > min(_LONGEST_BEAT, self._patience / _BEATS):
            self._number += 1
            self._beats[self._number] = now
            stopped = [number for number, started in self._started.items() if started.worker.is_stopped()]
            self._wire.send(kind="beat", number=self._number, stopped=stopped)
        return ""

    def _obey(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "beat":
            for number in [number for number in self._beats if number <= message["heard"]]:
                self._heard = max(self._heard, self._beats[number])
                if number != self._number:
                    del self._beats[number]
        elif kind == "work" and self._may_be_told:
            self._wire.send(kind="ready", problem=self._take_work(message))
        elif kind == "reach":
            threading.Thread(target=self._reach, args=(message["address"],), name="replicant-reach", daemon=True).start()
        elif kind == "start":
            self._start(message)
        elif kind == "signal" and message["worker"] in self._started:
            self._started[message["worker"]].worker.signal(message["number"])
        elif kind == "welcome":
            self._welcome()
        elif kind in ("end", "refused"):
            self.end = message

    def _reach(self, address: str) -> None:
        self._wire.send(kind="reached", problem=_problem_to_reach(address))

    def _take_work(self, message: Message) -> str:
        """Note what the workers run. Returns what is missing on this host."""
        try:
            os.chdir(message["folder"])
        except OSError as error:
            return f"has no folder {message['folder']!r} ({error.strerror}), in which the launcher was started"
        if message["script"] is not None and not os.access(message["script"], os.R_OK):
            return f"has no readable file {message['script']!r} in {message['folder']}"
        environ = {**os.environ, **message["environ"]}
        argv = [facts_here()["executable"], *message["arguments"]]
        self._work = Work(argv, environ, message["devices_per_worker"], message["start"])
        return ""

    def _start(self, message: Message) -> None:
        number = message["worker"]
        try:
            self._started[number] = started = self._begin(message)
        except ConfigurationError as error:
            self._wire.send(kind="cannot", worker=number, problem=str(error))
        else:
            self._wire.send(kind="started", worker=number, pid=started.worker.pid)

    def _begin(self, message: Message) -> _Started:
        """Start a worker.

        Raises:
            ConfigurationError: If it cannot be started here.
        """
        work = self._work
        if work is None:
            raise ConfigurationError("The launcher has not said what to run.")
        place = Place(**message["place"], key=self._key, local=tuple(message["local"]))
        accelerators = accelerators_of(work.environ, [path.name for path in Path("/dev").glob("nvidia*")])
        environ = worker_environment(work.environ, place, work.devices_per_worker, accelerators, work.start)
        log = self._folder / f"{message['worker']}.log"
        return _Started(Worker(place.rank, work.argv, {**environ, **message["more"]}, log, self._guard), log)

    def _watch(self) -> None:
        """Hand on what the workers have written and how they have ended, as fast as the launcher takes it."""
        for number, started in list(self._started.items()):
            has_ended = started.worker.poll()  # before its output is read: afterwards it writes no more
            while self._wire.is_open and self._wire.unsent < _CHUNK:
                text = started.read()
                if text:
                    self._wire.send(kind="log", worker=number, text=base64.b64encode(text).decode())
                else:
                    if has_ended:
                        self._wire.send(kind="ended", worker=number, code=started.worker.code)
                        started.close()
                        del self._started[number]
                    break

    def _kill_all(self) -> None:
        for started in self._started.values():
            started.worker.signal(signal.SIGKILL)
        for started in self._started.values():
            started.worker.kill()
            started.close()


def main() -> None:
    """The agent that a launcher starts through ssh. The first line of its standard input has the key of the connection."""
    told = json.loads(_first_line(0))
    reader, writer = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # nothing but messages goes to the launcher
    os.write(writer, b"\n")  # what the host has printed at the login may have no end of its line
    wire = Wire(reader, writer, wire_key(told["key"], told["nonce"]), AGENT)
    problem = Agent(wire, workers_key(told["key"], told["run"]), told["patience"]).serve()
    if problem:
        sys.exit(f"replicant launch: the agent on {socket.gethostname()} has ended its workers: {problem}.")


def _first_line(descriptor: int) -> bytes:
    line, deadline = b"", time.monotonic() + _KEY_SECONDS
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not line.endswith(b"\n"):  # one by one, because what follows belongs to the wire
        if not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
            sys.exit(f"replicant launch: the agent got no key within {_KEY_SECONDS:g} s.")
        byte = os.read(descriptor, 1)
        if not byte:
            sys.exit("replicant launch: the agent was started without a key. `replicant launch --hosts` starts it.")
        line += byte
    return line


def _problem_to_reach(address: str) -> str:
    """Why the launcher cannot be reached at an address, or ""."""
    host, port = split_address(address, "the launcher's address")
    try:
        socket.create_connection((host, port), timeout=_REACH_SECONDS).close()
    except TimeoutError:
        return f"no answer within {_REACH_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return ""
