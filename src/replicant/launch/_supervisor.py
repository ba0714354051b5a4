"""Starts the workers of a job, and starts them again if they fail and it makes sense to try again."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from ._environment import accelerators_of
from ._settings import Settings
from .console._console import Console
from .console._logs import Logs
from .console._signals import Signals, name_of
from .record._run_log import RunLog
from .show._status_server import Live, StatusServer
from .team import _policy
from .team._connections import Channel
from .team._elastic import ElasticTeam
from .team._processes import Guard
from .team._team import Team, Tools

_TICK = 0.1
_LONGEST_BEAT = 0.25  # seconds between two heartbeats of a worker, unless there are many workers
_BEATS_PER_SECOND = 256  # of all workers together, if there are many
_BEATS_PER_DEADLINE = 5


class Supervisor:
    """Runs one job from the main thread, on this machine unless `nodes` says otherwise.

    Args:
        settings: The settings of the job.
        out: The stream for the workers' output. By default standard output.
        err: The stream for the supervisor's messages. By default standard error.
        environ: The environment from which the workers' environments are made. By default the process's own.
        nodes: The ``RayNodes`` or ``Hosts`` on which the workers run. By default they run on this machine.
    """

    def __init__(
        self,
        settings: Settings,
        out: TextIO | None = None,
        err: TextIO | None = None,
        environ: Mapping[str, str] | None = None,
        nodes: Any = None,
    ):
        self._settings = settings
        self._nodes = nodes
        self._environ = dict(os.environ if environ is None else environ)
        self._console = Console(out or sys.stdout, err or sys.stderr)
        self._restarts = 0
        self._short_lives = 0

    def run(self) -> int:
        """Run the job until it ends.

        Returns:
            The exit code of the job: 0, or that of the first worker that failed (128+n for signal n).

        Raises:
            ConfigurationError: If the logs cannot be written, if the port is in use, or if there are too few accelerators.
        """
        settings = self._settings
        logs = Logs(settings.log_dir, settings.num_workers)
        host, key = ("127.0.0.1", None) if self._nodes is None else (self._nodes.address, self._nodes.key)
        live = None if settings.status_port is None else Live()
        with ExitStack() as stack:
            stack.callback(logs.close)
            stack.callback(self._console.status, "")
            tools = Tools(
                settings=settings,
                environ=self._environ,
                accelerators=accelerators_of(self._environ, [path.name for path in Path("/dev").glob("nvidia*")]),
                console=self._console,
                logs=logs,
                run_log=RunLog(logs.run_log, self._console.say, None if live is None else live.hear),
                signals=stack.enter_context(Signals()),
                guard=stack.enter_context(Guard()),
                channel=stack.enter_context(Channel(_beat_seconds(settings), host, settings.heartbeat, key)),
                host=host,
                nodes=self._nodes,
            )
            tools.channel.wake_by(tools.signals.fileno())
            tools.run_log.begin(settings.argv, settings.num_workers, settings.elastic)
            if live is not None and settings.status_port is not None:
                server = stack.enter_context(StatusServer(settings.status_port, live.pages()))
                self._console.say(f"status page: {server.url}")
            code = self._run(tools)
            tools.run_log.write("done", code=code)
        if code == 0:
            logs.remove_if_temporary()
        return code

    def _run(self, tools: Tools) -> int:
        generation = 0
        while True:
            code, generation = self._run_generation(tools, generation)
            if code is not None:
                return code
            generation += 1

    def _run_generation(self, tools: Tools, generation: int) -> tuple[int | None, int]:
        """Run one generation.

        Returns:
            The exit code of the job, or None to start it again, and the number of the last generation.
        """
        began = time.monotonic()
        with ExitStack() as stack:
            team = self._make_team(tools, generation, stack)
            team.watch()
        if isinstance(team, ElasticTeam):
            self._restarts = self._settings.max_restarts - team.restarts_left
        tools.logs.show(self._console, to_the_end=True)
        if not team.failures:
            return 0, team.generation
        if team.asked is not None:
            code = team.asked_code(team.asked)
            self._console.say(f"{name_of(team.asked)}: all workers have ended; exit code {code}.")
            return code, team.generation
        cause = _policy.first_cause(team.failures, team.left)
        lived = time.monotonic() - began
        decision = _policy.decide(cause, self._restarts, self._settings.max_restarts, lived, self._short_lives)
        self._short_lives = self._short_lives + 1 if _policy.is_short(lived) else 0
        self._restarts += decision.restart and decision.counts
        self._announce(tools, f"{team.describe(cause)}. {self._what_comes(decision, team.generation, tools.logs.folder)}")
        return (self._pause(tools, decision.pause) if decision.restart else decision.code), team.generation

    def _make_team(self, tools: Tools, generation: int, stack: ExitStack) -> Team:
        if self._nodes is not None:
            return self._nodes.make_team(tools, generation, stack, self._settings.max_restarts - self._restarts)
        if self._settings.elastic is None:
            return Team(tools, generation, stack)
        return ElasticTeam(tools, generation, stack, self._settings.max_restarts - self._restarts)

    def _what_comes(self, decision: _policy.Decision, generation: int, folder: Path) -> str:
        if decision.restart:
            counted = (
                f"restart {self._restarts} of {self._settings.max_restarts}" if decision.counts else "not counted as a restart"
            )
            waiting = f" in {decision.pause:g} s" if decision.pause else ""
            return f"Starting all workers again{waiting} as generation {generation + 1} ({counted})."
        return f"The job ends with exit code {decision.code} ({decision.reason}). Logs: {folder}"

    def _announce(self, tools: Tools, text: str) -> None:
        """Write a message to the console and to every log."""
        tools.run_log.write("decided", text=text)
        self._console.say(text)
        tools.logs.tell_all(text)

    def _pause(self, tools: Tools, seconds: float) -> int | None:
        """Wait. Returns an exit code if the user asks to end the job meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            for _ in tools.channel.poll(min(left, _TICK)):
                pass  # no worker is expected
            if self._nodes is not None:
                self._nodes.listen(tools)
            if asked := tools.signals.take():
                return 128 + asked[0]
        return None


def _beat_seconds(settings: Settings) -> float:
    """The seconds between two heartbeats of a worker."""
    return min(max(_LONGEST_BEAT, settings.num_workers / _BEATS_PER_SECOND), settings.heartbeat / _BEATS_PER_DEADLINE)
