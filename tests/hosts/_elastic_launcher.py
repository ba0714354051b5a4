"""``replicant launch --elastic`` with workers on several hosts: ``_elastic_launcher.py SETTINGS``, on one of them.

SETTINGS is JSON: the launcher's own address, the address of each worker, and arguments of `Settings`. An agent on each host
(``_agent.py``) starts the workers; all else is the launcher itself.
"""

import contextlib
import json
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from replicant.launch import Settings, Supervisor
from replicant.launch._environment import Place, worker_environment
from replicant.launch.team._elastic import ElasticTeam
from replicant.launch.team._processes import Worker
from replicant.launch.team._team import Team

AGENT_PORT = 2300
SECONDS = 5.0
LOST = -signal.SIGKILL
told = json.loads(sys.argv[1])


class RemoteWorker(Worker):
    """A worker on another host."""

    def __init__(self, rank: int, message: dict[str, Any], log: Path):
        self.rank, self.log, self.code, self.signals, self.pid = rank, log, None, set(), 0
        self._socket = socket.create_connection((told["workers"][rank], AGENT_PORT), timeout=SECONDS)
        self._socket.sendall(json.dumps(message).encode() + b"\n")
        self._lines = self._socket.makefile("rb", buffering=0)
        self.pid = json.loads(self._lines.readline())["pid"]
        self._socket.setblocking(False)

    def poll(self) -> bool:
        if self.code is None:
            with contextlib.suppress(BlockingIOError):
                data = self._socket.recv(4096)
                self.code = json.loads(data)["code"] if data else LOST
        return self.code is not None

    def is_stopped(self) -> bool:
        return False

    def signal(self, number: int) -> None:
        if not self.poll():
            self.signals.add(number)
            self._socket.sendall(b"%d\n" % number)

    def kill(self) -> None:
        """Kill it, if its host can be reached."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + 1.0
        while not self.poll() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.code = LOST if self.code is None else self.code


class HostsTeam(ElasticTeam):
    def _launch(self, place: Place, **more: str) -> Worker:
        tools, settings = self._tools, self._settings
        environ = worker_environment(tools.environ, place, settings.devices_per_worker, (), settings.start)
        log = tools.logs.begin(place.rank, place.generation, place.num_workers)
        environ |= {"REPLICANT_LOG": str(log), "REPLICANT_ELASTIC": "1", **more}
        return RemoteWorker(place.rank, {"argv": settings.argv, "environ": environ, "log": str(log)}, log)


class HostsSupervisor(Supervisor):
    def _make_team(self, tools: Any, generation: int, stack: Any) -> Team:
        return HostsTeam(tools, generation, stack, self._settings.max_restarts - self._restarts)


settings = told["settings"]
settings |= {"log_dir": Path(settings["log_dir"]), "elastic": tuple(settings["elastic"]), "command": tuple(settings["command"])}
sys.exit(HostsSupervisor(Settings(**settings), nodes=SimpleNamespace(address=told["address"], key=None)).run())
