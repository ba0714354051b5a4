"""The workers of one generation, which are started together and watched until all have ended."""

import dataclasses
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from ...cluster.wire._listener import Message
from .._environment import Place, worker_environment
from .._settings import Settings
from ..console._clock import Clock
from ..console._console import Console
from ..console._logs import Logs
from ..console._signals import Signals, name_of
from ..record._progress import Progress, status_line, straggler
from ..record._run_log import RunLog
from . import _policy
from ._connections import Channel
from ._deadlines import Deadlines
from ._policy import Failure, Kind
from ._processes import Guard, Worker
from ._service import CoordinationService

_TICK = 0.1  # seconds between two looks at logs and deadlines; everything else wakes the loop
_REST = 0.02  # seconds between two looks in any case
_GATHER = 0.02  # seconds after a heartbeat in which others gather, so that each does not wake the loop
_FAILURE_GRACE = 5.0  # for the others to end once one has failed; their work since the last backup is lost anyway
_END_SECONDS = 10.0  # after the heartbeat timeout, for Python to end; its threads do not run meanwhile
_STOPPED = (Kind.FROZEN, Kind.STUCK, Kind.STALLED, Kind.LATE, Kind.HELD)  # failures of workers that do not react to signals
_STATUS_SECONDS = 1.0
_LONGEST_TEXT = 1000  # characters of what a worker tells
_STRAGGLER_SECONDS = 60.0  # between two warnings


@dataclasses.dataclass(frozen=True)
class Tools:
    """What the supervisor provides for its workers."""

    settings: Settings
    environ: Mapping[str, str]
    accelerators: Sequence[str]
    console: Console
    logs: Logs
    run_log: RunLog
    signals: Signals
    guard: Guard
    channel: Channel
    host: str = "127.0.0.1"  # the address at which workers reach this machine
    nodes: Any = None  # a `RayNodes` or `Hosts`, if workers are on other machines


class Team:
    """The workers of one generation, from their start until all have ended.

    Args:
        tools: The tools of the supervisor.
        generation: How many times the job was started again.
        stack: The stack that ends whatever is still running.

    Raises:
        ConfigurationError: If the workers cannot be started.
    """

    def __init__(self, tools: Tools, generation: int, stack: ExitStack):
        self._tools, self._settings, self._console = tools, tools.settings, tools.console
        self.generation = generation
        self.failures: list[Failure] = []
        self.asked: int | None = None  # the signal by which the user ends the job
        self.workers: list[Worker] = []  # by rank
        self.progress = {rank: Progress() for rank in range(self._settings.num_workers)}
        self._deadlines = Deadlines(self._settings, self.progress)
        self._reported: set[int] = set()
        self._is_forgery_told = False
        self._noted: set[Worker] = set()  # workers whose end has been handled
        self._clock = Clock()
        self._looked = self._clock.read()
        self._ran: dict[int, float] = {}  # when the system last said that a worker runs which has not connected yet
        self._stop_at: float | None = None  # when the remaining workers are killed
        self._next_status = self._next_warning = 0.0
        self._stack = stack
        self._service: CoordinationService | None = None
        stack.callback(self._kill_all)
        tools.channel.is_expected = self._is_expected
        self._start()

    @property
    def left(self) -> list[int]:
        """The ranks that have ended without an error, in order."""
        return self._deadlines.left

    # Start and end.

    def _start(self) -> None:
        tools, count = self._tools, self._settings.num_workers
        coordinator = self._serve(count, self._settings.port)
        for rank in range(count):
            self.workers.append(
                self._launch(Place(rank, count, self.generation, coordinator, tools.channel.address, tools.channel.key))
            )

    def _serve(self, num_workers: int, port: int | None = None) -> str | None:
        """Start a coordination service for a generation. Returns its address, or None for one worker, which needs none."""
        self._service = None
        if num_workers > 1:
            service = CoordinationService(num_workers, 2 * self._settings.heartbeat, port, self._tools.host)
            self._service = self._stack.enter_context(service)
        return None if self._service is None else self._service.address

    def _launch(self, place: Place, **more: str) -> Worker:
        tools, settings = self._tools, self._settings
        environ = worker_environment(tools.environ, place, settings.devices_per_worker, tools.accelerators, settings.start)
        log = tools.logs.begin(place.rank, place.generation, place.num_workers)
        worker = Worker(place.rank, settings.argv, {**environ, "REPLICANT_LOG": str(log), **more}, log, tools.guard)
        tools.run_log.write("start", rank=place.rank, generation=place.generation, pid=worker.pid)
        return worker

    def _kill_all(self) -> None:
        for worker in self.workers:
            worker.kill()

    def _is_expected(self, rank: int, generation: int, pid: int) -> bool:
        del generation  # a worker with this process number belongs to this generation
        return 0 <= rank < len(self.workers) and self.workers[rank].pid == pid

    # The loop.

    def watch(self) -> None:
        """Watch the workers until all have ended."""
        running = list(self.workers)
        while running:
            self._listen()
            now = self._looked = self._clock.read()
            self._obey(now)
            self._each_round(now)
            running = [worker for worker in self.workers if not self._has_ended(worker, now)]
            if self._stop_at is None:
                self._check_deadlines(now, running)
            elif now > self._stop_at:
                for worker in running:
                    worker.signal(signal.SIGKILL)
            self._tools.logs.show(self._console)
            self._show(now)

    def _listen(self) -> None:
        """Take in messages until the next look at everything. Any message except a heartbeat makes that look due at once."""
        until = max(self._looked + _TICK, self._clock.read() + _REST)
        while True:
            left = until - self._clock.read()
            kinds = set()
            for rank, message in self._tools.channel.poll(max(0.0, left)):
                self._take(rank, message)
                kinds.add(message.get("kind"))
            if left <= 0 or kinds != {"beat"}:  # no message: the time is over, or a signal or the end of a worker woke it
                return
            time.sleep(_GATHER)

    def _each_round(self, now: float) -> None:
        """Do what subclasses do in each round of the loop."""

    def _take(self, rank: int, message: Message) -> None:
        now, progress = self._clock.read(), self.progress[rank]
        kind = message.get("kind")
        if kind == "hello":
            self._deadlines.come(now)
            progress.hello(now, str(message.get("host", ""))[:255])
            self._tools.run_log.write("came", rank=rank, host=progress.host)
        elif kind == "beat":
            progress.beat(now, message)
            if progress.phase == "end":
                self._deadlines.leave(now)
        elif kind == "saved":
            facts = {name: message.get(name) for name in ("step", "seconds", "path")}
            self._tools.run_log.write("saved", rank=rank, **facts)
        elif kind == "connected" and message.get("generation") == self.generation and self._service is not None:
            self._service.note_connected()
        elif kind == "forged":
            text = str(message.get("text", ""))[:_LONGEST_TEXT]
            self._tools.run_log.write("forged", rank=rank, text=text)
            if not self._is_forgery_told:
                self._is_forgery_told = True
                self._console.say(f"rank {rank}: {text}")
        elif kind == "failed":
            self._reported.add(rank)
            if type(message.get("step")) is int:
                progress.step = message["step"]
            self._fail(now, _policy.of_exit(rank, 0, self._settings.preempted_code, str(message.get("text", ""))))

    def _has_ended(self, worker: Worker, now: float) -> bool:
        if not worker.poll():
            return False
        if worker not in self._noted:
            self._noted.add(worker)
            self._tools.run_log.write("ended", rank=worker.rank, code=worker.code)
            if worker.code is not None and worker.rank not in self._reported:  # otherwise it has said why
                self._note_end(worker.rank, worker.code, worker.signals, now)
        return True

    def _note_end(self, rank: int, code: int, signals: set[int], now: float) -> None:
        if self._stop_at is not None and (code >= 0 or -code in signals or code == -signal.SIGABRT):
            return  # it ended because it was asked to, or because others have ended
        if code == 0:
            self._deadlines.leave(now, rank)
        self._fail(now, _policy.of_exit(rank, code, self._settings.preempted_code))

    def _fail(self, now: float, failure: Failure | None) -> None:
        """Note a failure. The first one ends the other workers. After a preemption, they first get time to leave by themselves."""
        if failure is None:
            return
        self._note_failure(failure)
        self.failures.append(failure)
        if self._stop_at is None:
            if failure.kind is Kind.PREEMPTED:
                self._stop_at = now + self._settings.grace
            else:
                self._stop(now, signal.SIGTERM, min(_FAILURE_GRACE, self._settings.grace))

    def _note_failure(self, failure: Failure) -> None:
        step = self.progress[failure.rank].step if failure.rank >= 0 else None
        self._tools.run_log.all_steps(self.progress)
        self._tools.run_log.write("failed", rank=failure.rank, what=str(failure), step=step, cause=failure.kind.name.lower())

    def _stop(self, now: float, number: int, grace: float) -> None:
        self._stop_at = now + grace
        stopped = {failure.rank for failure in self.failures if failure.kind in _STOPPED}
        for worker in self.workers:
            if worker.rank in stopped:
                worker.signal(signal.SIGKILL)
            else:
                worker.signal(number)
                worker.signal(signal.SIGCONT)  # a stopped process gets no other signal

    def _obey(self, now: float) -> None:
        for number in self._tools.signals.take():
            if self.asked is None:
                self.asked = number
                self._console.say(f"{name_of(number)}: ending the workers within {self._settings.grace:g} s (again: at once).")
                self.failures.append(Failure(-1, Kind.ASKED, 128 + number, name_of(number)))
                self._stop(now, signal.SIGTERM if number == signal.SIGHUP else number, self._settings.grace)
            else:
                self._stop_at = now  # the second time

    # Deadlines.

    def _check_deadlines(self, now: float, running: list[Worker]) -> None:
        silence = self._settings.heartbeat + _END_SECONDS
        for worker in running:
            if self.progress[worker.rank].phase == "end" and self._silent_for(now, worker.rank) > silence:
                self._end_after_its_program(worker, now, silence)
        failure = next(filter(None, (self._deadline_missed(now, worker.rank) for worker in running)), None)
        self._fail(now, failure or self._deadlines.stalled(now, [worker.rank for worker in running]))

    def _deadline_missed(self, now: float, rank: int) -> Failure | None:
        return self._deadlines.missed(now, rank, self._silent_for(now, rank))

    def _end_after_its_program(self, worker: Worker, now: float, silence: float) -> None:
        """End the process of a worker whose program has reached its end. Nothing that it still does counts."""
        if worker in self._noted:
            return
        self._console.say(
            f"rank {worker.rank} (host {self.progress[worker.rank].host}, pid {worker.pid}) had reached the end of its program, "
            f"but its process sent no heartbeat for {silence:g} s and was killed. It counts as ended without an error."
        )
        worker.kill()
        self._noted.add(worker)
        self._note_end(worker.rank, 0, worker.signals, now)

    def _silent_for(self, now: float, rank: int) -> float:
        """The seconds since a worker's last heartbeat or, before the first one, since it was stopped."""
        seen = self.progress[rank].seen
        if seen is None:
            if not self.workers[rank].is_stopped():
                self._ran[rank] = now
            seen = self._ran.setdefault(rank, now)
        return now - seen

    # What is shown.

    def _show(self, now: float) -> None:
        self._tools.run_log.steps(now, self.progress)
        if now > self._next_status:
            self._next_status = now + _STATUS_SECONDS
            running = {worker.rank: self.progress[worker.rank] for worker in self.workers if worker.code is None}
            self._console.status(status_line(self.generation, running))
            found = straggler(running)
            if found is not None and now > self._next_warning and self._stop_at is None:
                self._next_warning = now + _STRAGGLER_SECONDS
                rank, seconds, others = found
                self._tools.run_log.write("slow", rank=rank, seconds=round(seconds, 4), others=round(others, 4))
                self._console.say(
                    f"rank {rank} (host {self.progress[rank].host}) is slow: it takes {seconds:.2g} s of its own per step, the "
                    f"others {others:.2g} s."
                )

    def describe(self, failure: Failure) -> str:
        """Describe a failure and its worker."""
        progress, worker = self.progress[failure.rank], self.workers[failure.rank]
        facts = {"host": progress.host or worker.host, "pid": worker.pid, "step": progress.step, "log": worker.log}
        return _policy.describe(failure, facts)

    def asked_code(self, number: int) -> int:
        """The exit code of a job that was asked to end: that of one of its workers, or else that of the signal."""
        own = [worker.code for worker in self.workers if worker.code is not None and worker.code > 0]
        return own[0] if own else 128 + number
