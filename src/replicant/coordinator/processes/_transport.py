"""Starts servers and workers as processes on this machine, or as threads of this process for tests."""

import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ..._python import own_python
from .._worker_strategy import worker_strategy
from ..servers._server import Server
from ..servers._store import ServerMemory
from ..wire._channel import Channel
from ..wire._fence import check_ordered
from ..wire._memory import Memory
from ..wire._pulse import NBYTES as PULSE_NBYTES
from ..wire._pulse import Pulse
from ..workers._worker import Worker
from ._environment import settings_of, without_virtual_devices

_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy")
_BOOT = """
import json, sys
job = json.loads(sys.argv[1])
sys.path[:] = job["own path"]
from replicant.coordinator.processes._child import main
sys.path[:] = job["path"]
main(job)
"""


class Running(Protocol):
    """A started server or worker. One that has a `pulse` (see ``wire._pulse``) is watched more closely."""

    @property
    def pid(self) -> int | None:
        """The ID of its process; None for a thread."""
        ...

    def ended(self) -> str | None:
        """How it ended, in words; None while it runs."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for its end. Returns whether it has ended."""
        ...


class Transport(Protocol):
    """Starts servers and workers."""

    def open(self, servers: int, workers: int) -> list[ServerMemory]:
        """Prepare to start these. Returns the servers' memories, or what the coordinator uses in their place."""
        ...

    def close(self) -> None:
        """Clean up, after all of them have ended."""
        ...

    def start(self, role: str, number: int, control: Channel, memories: Sequence[ServerMemory]) -> Running:
        """Start a server or worker.

        Args:
            role: "server" or "worker".
            number: the server's index or the worker's client number.
            control: its end of the control channel. The transport closes it.
            memories: the memories that it may see.
        """
        ...


_lifelines: set[int] = set()  # this process's ends; servers and workers end when theirs closes


def _let_go() -> None:
    """Close the lifelines in a forked child: servers and workers must end with its parent."""
    for lifeline in _lifelines:
        os.close(lifeline)
    _lifelines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


class _Process:
    def __init__(self, process: "subprocess.Popen[bytes]", lifeline: int, pulse: Pulse):
        self._process = process
        self._lifeline = lifeline
        self.pulse = pulse

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def ended(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        if self._lifeline >= 0:
            _lifelines.discard(self._lifeline)
            os.close(self._lifeline)
            self._lifeline = -1
        return True


class Processes:
    """Starts child processes that share memory with this one, and end when it ends, in whatever way.

    They divide the processor's cores: otherwise the spinning threads of one would take time from the others.
    """

    keeps_answers = True

    def __init__(self) -> None:
        self._threads: dict[str, int] = {}  # of one process of each role

    def open(self, servers: int, workers: int) -> list[ServerMemory]:
        check_ordered(platform.machine())
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = {"worker": max(1, cores // workers), "server": max(1, cores // servers)}
        return [ServerMemory.create() for _ in range(servers)]

    def close(self) -> None:
        """Do nothing: nothing is left."""

    def start(self, role: str, number: int, control: Channel, memories: Sequence[ServerMemory]) -> Running:
        lifeline, held = os.pipe()
        _lifelines.add(held)
        pulse = Memory.create(PULSE_NBYTES)
        fds = [control.fileno(), lifeline, pulse.fd, *[fd for m in memories for fd in (m.values.fd, m.saved.fd)]]
        job = {
            "role": role,
            "number": number,
            "control": control.fileno(),
            "lifeline": lifeline,
            "parent": os.getpid(),
            "pulse": pulse.fd,
            "memories": [(m.values.fd, m.saved.fd) for m in memories],
            "path": sys.path,
            "own path": own_path(sys.path),
        }
        command = own_python("-c", _BOOT, json.dumps(job))
        process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, env=_environment(role, self._threads[role]))  # noqa: S603
        os.close(lifeline)
        control.close()
        return _Process(process, held, Pulse.over(pulse))


def own_path(path: Sequence[str]) -> list[str]:
    """Where a child finds this package and what it needs: as the program does, but not in whatever is the current folder by now.

    An interactive program has that folder, "", on its path for its own modules.
    """
    kept = [folder for folder in path if folder]
    home = str(Path(__file__).parents[3])
    return kept if home in kept else [*kept, home]


def _environment(role: str, num_threads: int) -> dict[str, str]:
    """The environment of a child process: this one's without proxies, and with the settings of its role."""
    env = {name: value for name, value in os.environ.items() if name.lower() not in _PROXIES}
    env |= settings_of(role, num_threads)
    env.pop("JAX_NUM_CPU_DEVICES", None)
    flags = without_virtual_devices(env.pop("XLA_FLAGS", ""))
    return env | {"XLA_FLAGS": flags} if flags else env


class _Thread:
    pid = None

    def __init__(self, target: Callable[[], None], name: str, pulse: Pulse):
        self._target = target
        self.pulse = pulse
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._target()
        except Exception as error:  # noqa: BLE001 - a process would print it and end; a thread reports it in `ended`
            self._error = error

    def ended(self) -> str | None:
        if self._thread.is_alive():
            return None
        return "ended" if self._error is None else f"failed ({type(self._error).__name__}: {self._error})"

    def kill(self) -> None:
        """Do nothing: a thread cannot be killed. It ends when it next reads its channel."""

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


class Threads:
    """Runs servers and workers as threads of this process, with the same code. They start fast, and compute nothing in parallel."""

    keeps_answers = True

    def open(self, servers: int, workers: int) -> list[ServerMemory]:
        return [ServerMemory.create() for _ in range(servers)]

    def close(self) -> None:
        """Do nothing: nothing is left."""

    def start(self, role: str, number: int, control: Channel, memories: Sequence[ServerMemory]) -> Running:
        own = [memory.duplicate() for memory in memories]
        pulse = Pulse.alone()
        return _Thread(lambda: play(role, number, control, own, pulse), f"replicant-{role}-{number}", pulse)


def play(role: str, number: int, control: Channel, memories: list[ServerMemory], pulse: Pulse) -> None:
    """Run a server or worker until it is told to stop. It writes what it is doing to `pulse`."""
    try:
        if role == "server":
            Server(number, memories[0], control).run()
        else:
            Worker(number, memories, control, worker_strategy(), pulse).run()
    finally:
        control.close()
        for memory in memories:
            memory.close()
