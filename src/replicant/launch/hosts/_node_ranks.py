"""``replicant launch --node-rank 0``: the launcher of a job whose other nodes come to it by themselves."""

import queue
import socket
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from ...errors import ConfigurationError
from .._settings import Settings
from ..console._console import Console
from ..team._team import Tools
from ._facts import received
from ._hosts import Hosts, agent_command, refuse_elastic
from ._lobby import Lobby
from ._remote import Link
from ._ssh import own_address
from ._wire import Wire

_TICK = 0.05


class NodeRanks(Hosts):
    """This machine, which is node 0, and the nodes that come to it. Once they are there, `settings` has the number of all workers.

    Args:
        settings: The settings of the job, with the number of workers on this node.
        nodes: The number of nodes.
        address: The host and port at which this node lets the others in.
        key: The key of the job.
        max_clock_skew: By how many seconds the clocks of the nodes may differ.

    Raises:
        ArgumentError: If the job is elastic.
    """

    def __init__(
        self,
        settings: Settings,
        nodes: int,
        address: tuple[str, int],
        key: str,
        max_clock_skew: float = 60.0,
    ):
        super().__init__(settings, key, max_clock_skew)
        refuse_elastic(settings)
        self._nodes, self._place = nodes, address
        self._console = Console(sys.stdout, sys.stderr)
        self._lock = threading.Lock()
        self._came: dict[int, tuple[Link, int]] = {}  # nodes that were let in and are not part of the job yet, with their workers
        self._processes: dict[int, Any] = {}  # which process each node was at last
        self._workers: dict[int, int] = {}  # of each node that was ever there
        self._news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lobby: Lobby | None = None

    def _meet(self) -> None:
        listener = self._listen_at()
        here = self.open_agent(f"node 0 ({socket.gethostname()})", agent_command(sys.executable))
        self.links.append(here)
        self._tell_whom()
        terms = {"run": self._run, "patience": self.settings.heartbeat}
        self._lobby = Lobby(listener, self._job_key, terms, self._let_in, self._news.put)
        self.await_all("facts", self.settings.start)
        here.patience = self.settings.heartbeat
        self.tell_work([here])
        self._wait_for_all()
        self.counts = [self.settings.num_workers, *(self._came[number][1] for number in range(1, self._nodes))]
        self.links += [self._came[number][0] for number in range(1, self._nodes)]
        self._came.clear()
        self.settings = replace(self.settings, num_workers=sum(self.counts))

    def _meet_again(self, number: int, tools: Tools) -> str:
        if number == 0:
            link = self.open_agent(self.links[0].name, agent_command(sys.executable))
            self.await_all("facts", self.settings.start, tools, [link])
            link.patience = self.settings.heartbeat
            self.tell_work([link], tools)
        else:
            with self._lock:
                if number not in self._came:
                    return "it has not connected again"
                link, _ = self._came.pop(number)
        self.links[number] = link
        return ""

    def listen(self, tools: Tools | None) -> None:
        """Take in what all agents have said, and who has come."""
        while not self._news.empty():
            (self._console if tools is None else tools.console).say(self._news.get())
        super().listen(tools)
        with self._lock:
            for number, (link, _) in list(self._came.items()):
                if link.lost:
                    del self._came[number]
                elif self._is_there(number):
                    self.links[number].lose(f"{link.name} has connected again")

    def all_links(self) -> list[Link]:
        """The connections to all agents, also to those that are not part of the job yet."""
        with self._lock:
            return [*self.links, *(link for link, _ in self._came.values())]

    def close(self, problem: str = "") -> None:
        """End the job on all nodes."""
        super().close(problem)
        for link, _ in self._came.values():
            link.close()
        if self._lobby is not None:
            self._lobby.close()

    def _listen_at(self) -> socket.socket:
        host, port = self._place
        self.address = own_address(
            host, f"--address {host}:{port}", "It is the address at which node 0 lets the other nodes in: give one of node 0's own."
        )
        if self._nodes > 1 and self.address.startswith("127.") and host not in ("localhost", self.address):
            raise ConfigurationError(
                f"--address {host}:{port}: {host} stands for {self.address} on {socket.gethostname()}, where no other host can "
                "reach it. Give its IP address, or change /etc/hosts."
            )
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.address, port))
            listener.listen(1024)
        except OSError as error:
            listener.close()
            raise ConfigurationError(
                f"--address {host}:{port} cannot be used: {error.strerror}. Does another job use this port? Give another one on "
                "all nodes."
            ) from error
        return listener

    def _wait_for_all(self) -> None:
        """Wait until all nodes are there.

        Raises:
            ConfigurationError: If one of them does not come in time.
        """
        start = self.settings.start
        deadline = time.monotonic() + start
        while missing := [number for number in range(1, self._nodes) if number not in self._came]:
            self.listen(None)
            if time.monotonic() > deadline:
                names = " and ".join(f"node {number}" for number in missing)
                raise ConfigurationError(
                    f"{names} of {self._nodes} did not come within {start:g} s (--start). Is `replicant launch --node-rank "
                    f"{missing[0]} --nodes {self._nodes} --address {self.address}:{self._place[1]}` running there, and what does "
                    "it say?"
                )
            time.sleep(_TICK)

    def _tell_whom(self) -> None:
        if self._nodes > 1:
            rest = f"nodes 1 to {self._nodes - 1}" if self._nodes > 2 else "node 1"
            self._console.say(f"node 0 waits at {self.address}:{self._place[1]} for {rest}, for up to {self.settings.start:g} s.")

    def _is_there(self, number: int) -> bool:
        """Whether a node is part of the job, as far as is known."""
        return number < len(self.links) and not self.links[number].lost

    def _let_in(self, facts: dict[str, Any], wire: Wire) -> str:
        """Decide about a node, in the lobby's thread."""
        number, nodes, workers, process = (facts.get(name) for name in ("node", "nodes", "workers", "process"))
        if type(number) is not int or type(workers) is not int or number < 1:
            return "it does not say which node it is"
        name = f"node {number} ({facts.get('host')})"
        if nodes != self._nodes:
            return f"{name} was started with --nodes {nodes}, but node 0 with --nodes {self._nodes}. All nodes need the same."
        link = Link(name, wire, self.settings.heartbeat)
        link.said["facts"] = received(facts)
        if found := self.differences(link):
            return " ".join(found)
        with self._lock:
            if (number in self._came or self._is_there(number)) and self._processes[number] != process:
                return f"there is a node {number} already, and {name} is a second one. Give each node a --node-rank of its own."
            if self._workers.setdefault(number, workers) != workers:
                return f"{name} was started with --workers {workers}, but it had {self._workers[number]} before."
            self._processes[number] = process
            self._came[number] = (link, workers)
        return ""
