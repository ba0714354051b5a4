"""The hosts of a job, as the supervisor sees them: an agent on each of them, which is asked, told, and started again."""

import json
import math
import os
import secrets
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from ...errors import ArgumentError, ConfigurationError
from .._environment import Place, carried
from .._settings import Settings
from ..team._policy import Failure, Kind
from ..team._processes import Worker
from ..team._team import Team, Tools
from ._facts import differences, facts_here
from ._remote import Link, RemoteWorker
from ._wire import LAUNCHER, Wire, wire_key, workers_key

REACH_SECONDS = 15.0  # for an agent to try to reach the launcher, which it gives up earlier
_TICK = 0.05
_BEATS = 10  # while an agent is patient
_LONGEST_BEAT = 1.0  # seconds
_CLOSE_SECONDS = 5.0  # for what connects to the agents to end


# This runs on the host before anything of Replicant is known to be there, so old versions of Python must understand it.
# They have no option -P, without which Python itself imports modules from the current folder before it runs the first line here. So
# it begins with -I, which would leave out what the user has set for Python, and then goes over to -P.
_BEGIN = """
import json, os, sys
if sys.flags.isolated and sys.version_info >= (3, 11):
    os.execv(sys.executable, [sys.executable, "-P", "-c", sys.orig_argv[-1]])
try:
    from replicant.launch.hosts._agent import main
except BaseException as error:
    version = ".".join(map(str, sys.version_info[:3]))
    text = json.dumps({"kind": "no agent", "python": version, "error": "%s: %s" % (type(error).__name__, error)})
    os.write(1, ("\\n" + text + "\\n").encode())
    sys.exit(1)
main()
"""


class Hosts(ABC):
    """The agents of a job. It is a context manager.

    Args:
        settings: The settings of the job.
        key: The key of the job.
        max_clock_skew: By how many seconds the clocks of the hosts may differ.
    """

    address: str  # at which the agents' workers reach this machine

    def __init__(self, settings: Settings, key: str, max_clock_skew: float):
        self.settings = settings
        self.links: list[Link] = []  # one for each host
        self.counts: list[int] = []  # of workers on each host
        self._job_key, self._run = key, secrets.token_hex(8)
        self.key = workers_key(key, self._run)
        self._max_clock_skew = max_clock_skew
        self._is_finished = False
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="replicant-hosts", daemon=True)

    @abstractmethod
    def _meet(self) -> None:
        """Connect to all agents, and set `address`, `links` and `counts`.

        Raises:
            ConfigurationError: If one of them cannot take part.
        """

    @abstractmethod
    def _meet_again(self, number: int, tools: Tools) -> str:
        """Connect to a lost agent again, if that is possible now. Returns why it is not, or "" if it is connected."""

    def __enter__(self) -> Self:
        """Connect to the agents."""
        try:
            self._keeper.start()
            self._meet()
        except BaseException as error:
            self.close(str(error) or type(error).__name__)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close("" if error is None else str(error) or type(error).__name__)

    def finish(self, code: int) -> None:
        """Tell the agents that the job has ended."""
        self._end_all(code, "")

    def close(self, problem: str = "") -> None:
        """End the agents, which kill what still runs."""
        if not self._is_finished:
            self._end_all(1, problem)
        self._closing.set()
        if self._keeper.is_alive():
            self._keeper.join()
        try:
            for link in self.links:
                link.wire.close()
            deadline = time.monotonic() + _CLOSE_SECONDS  # for all of them: hosts that are cut off do not answer
            for link in self.links:
                link.close(max(0.0, deadline - time.monotonic()))
        finally:  # also after another Ctrl-C
            for link in self.links:
                link.close(0.0)

    def make_team(self, tools: Tools, generation: int, stack: ExitStack, restarts_left: int) -> Team:
        """The workers of one generation."""
        del restarts_left
        return HostsTeam(tools, generation, stack)

    def seat(self, rank: int) -> tuple[Link, tuple[int, int]]:
        """The agent of a worker, the worker's number on that host, and the number of workers there."""
        for link, count in zip(self.links, self.counts, strict=True):
            if rank < count:
                return link, (rank, count)
            rank -= count
        raise AssertionError(f"there are only {sum(self.counts)} places")

    def listen(self, tools: Tools | None) -> None:
        """Take in what all agents have said. Whoever waits does this, because agents that are not heard end their workers."""
        for link in self.all_links():
            for message in link.listen():
                if message["kind"] == "asked" and tools is not None:
                    tools.signals.note(message["number"])

    def all_links(self) -> list[Link]:
        """The connections to all agents."""
        return list(self.links)

    def prepare(self, tools: Tools) -> None:
        """Connect to lost agents again, and check that all of them reach the supervisor.

        Raises:
            ConfigurationError: If one of them does not.
        """
        for number, link in enumerate(self.links):
            if link.lost:
                self._wait_for(number, link, tools)
        for link in self.links:
            link.said.pop("reached", None)
            link.tell(kind="reach", address=tools.channel.address)
        self.await_all("reached", REACH_SECONDS, tools)
        here = socket.gethostname()
        raise_all(
            f"{link.host} cannot reach {here} at {tools.channel.address}: {problem}. Workers connect to the launcher's host and to "
            "each other at any port from 1024 on. Let a firewall between the hosts pass these, or give another --address."
            for link in self.links
            if (problem := link.lost or link.said["reached"]["problem"])
        )

    def await_all(self, kind: str, seconds: float, tools: Tools | None = None, links: Sequence[Link] | None = None) -> None:
        """Wait until agents have answered, or are lost."""
        links = self.links if links is None else links
        deadline = time.monotonic() + seconds
        while waiting := [link for link in links if kind not in link.said and not link.lost]:
            if time.monotonic() > deadline:
                for link in waiting:
                    link.lose(f"{link.name} gave no answer within {seconds:g} s")
                return
            time.sleep(_TICK)
            self.listen(tools)
            for link in waiting:
                link.listen()  # it may not be one of the job's yet
            leave_if_asked(tools)

    def differences(self, link: Link) -> list[str]:
        """What must be changed on a host before it can take part."""
        return differences(facts_here(), link.said["facts"], self._max_clock_skew)

    def open_agent(self, name: str, command: list[str]) -> Link:
        """Start an agent, or what connects to one. It is heard later."""
        settings, nonce = self.settings, secrets.token_hex(16)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - the link keeps it
        try:
            process = subprocess.Popen(  # noqa: S603 - the hosts are the user's
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            raise ConfigurationError(f"{command[0]} could not be started: {error.strerror}.") from error
        assert process.stdin is not None
        assert process.stdout is not None
        wire = Wire(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()), wire_key(self._job_key, nonce), LAUNCHER)
        process.stdout.close()
        process.stdin.close()
        told = {"key": self._job_key, "nonce": nonce, "run": self._run, "patience": settings.heartbeat}
        wire.send_bare(json.dumps(told).encode() + b"\n")
        return Link(name, wire, math.inf, process, errors)  # whoever waits for its facts has a deadline

    def tell_work(self, links: list[Link], tools: Tools | None = None) -> None:
        """Tell agents what to run.

        Raises:
            ConfigurationError: If one of them lacks the folder or the program.
        """
        settings, folder = self.settings, str(Path.cwd())
        for link in links:
            link.tell(
                kind="work",
                arguments=settings.argv[1:],
                folder=folder,
                script=None if settings.is_module else settings.command[0],
                environ=carried(os.environ),
                devices_per_worker=settings.devices_per_worker,
                start=settings.start,
            )
        self.await_all("ready", settings.start, tools, links)
        raise_all(
            link.lost
            or f"{link.host} {problem}. All hosts need the program and its data at the same paths: share the folder, or copy it "
            f"there: rsync -a {shlex.quote(folder)}/ {link.name}:{shlex.quote(folder)}"
            for link in links
            if (problem := link.lost or link.said["ready"]["problem"])
        )

    def _end_all(self, code: int, problem: str) -> None:
        self._is_finished = True
        for link in self.all_links():
            link.tell(kind="end", code=code, problem=problem)

    def _wait_for(self, number: int, link: Link, tools: Tools) -> None:
        """Wait until a lost host is there again. Workers that it may still run have ended before."""
        tools.console.say(f"waiting for {link.name} to be there again: {link.lost}.")
        safe = link.heard + self.settings.heartbeat
        deadline = max(safe, time.monotonic()) + self.settings.start
        problem = "its workers may still run"
        while problem:
            leave_if_asked(tools)
            time.sleep(_TICK)
            self.listen(tools)
            if time.monotonic() > safe:
                problem = self._meet_again(number, tools)
            if problem and time.monotonic() > deadline:
                raise ConfigurationError(f"{link.name} did not come back within {self.settings.start:g} s (--start): {problem}")

    def _keep(self) -> None:
        interval = min(_LONGEST_BEAT, self.settings.heartbeat / _BEATS)
        while not self._closing.wait(interval):
            for link in self.all_links():
                link.tell_heard()


class HostsTeam(Team):
    """The workers of one generation, on several hosts."""

    def _start(self) -> None:
        self._tools.nodes.prepare(self._tools)
        super()._start()

    def _launch(self, place: Place, **more: str) -> Worker:
        tools, hosts = self._tools, self._tools.nodes
        link, local = hosts.seat(place.rank)
        log = tools.logs.begin(place.rank, place.generation, place.num_workers)
        more = {"REPLICANT_LOG": str(log), **more}
        worker = RemoteWorker(place, link, log, local=local, more=more, pump=lambda: hosts.listen(tools))
        tools.run_log.write("start", rank=place.rank, generation=place.generation, pid=worker.pid)
        return worker

    def _is_expected(self, rank: int, generation: int, pid: int) -> bool:
        """Whether a worker belongs to the job. It knows the job's key, and its process number may not be known yet."""
        return generation == self.generation and any(w.rank == rank and w.pid in (pid, 0) for w in self.workers)

    def _each_round(self, now: float) -> None:
        self._tools.nodes.listen(self._tools)
        super()._each_round(now)

    def _note_end(self, rank: int, code: int, signals: set[int], now: float) -> None:
        worker: Any = self.workers[rank]
        if worker.problem:
            raise ConfigurationError(f"{worker.host}: {worker.problem}")
        if worker.lost:
            self._fail(now, Failure(rank, Kind.CUT, 128 - code, worker.lost))
        else:
            super()._note_end(rank, code, signals, now)


def agent_command(python: str) -> list[str]:
    """The command line of an agent."""
    return [python, "-I", "-c", _BEGIN]


def refuse_elastic(settings: Settings) -> None:
    """Refuse a job that is elastic.

    Raises:
        ArgumentError: If it is.
    """
    if settings.elastic is not None:
        raise ArgumentError(
            "--elastic works only on one machine so far. On several hosts, all workers are started again from the last backup: "
            "leave --elastic out, and give --max-restarts."
        )


def raise_all(problems: Iterable[str]) -> None:
    """Raise an error with all problems, one in a line.

    Raises:
        ConfigurationError: If there are any.
    """
    if found := list(problems):
        raise ConfigurationError("\n  ".join(["the job cannot start on all of its hosts:", *found] if len(found) > 1 else found))


def leave_if_asked(tools: Tools | None) -> None:
    """End this process if the user has asked for it while no worker runs."""
    if tools is not None and (asked := tools.signals.take()):
        raise SystemExit(128 + asked[0])
