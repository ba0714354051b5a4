"""What a job did with its time, worked out from its run log. Nothing here writes or draws.

The job's time is divided into periods: one for each group of workers that trained together. A period begins with starting, until a
worker has run a step. If it ends because workers fail or change, the steps after its last checkpoint are run again later.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import CommandError

STARTING, COUNTED, REPEATED, DOWN = "starting", "steps that counted", "steps that were run again", "without workers"
KINDS = (COUNTED, STARTING, REPEATED, DOWN)
_CHANGED = "the group of workers changed"


@dataclasses.dataclass(frozen=True)
class Span:
    """What the job did from one time to another, both in seconds since 1970."""

    kind: str
    start: float
    stop: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.stop - self.start


@dataclasses.dataclass
class Period:
    """The time for which one group of workers trained together."""

    generation: int
    start: float
    stop: float = 0.0
    first_step: float | None = None
    saves: list[float] = dataclasses.field(default_factory=list)  # when the state was taken that a complete checkpoint holds
    cause: str | None = None  # why it ended, if others had to go on
    steps: int = 0  # that its fastest worker has run
    counted_steps: int = 0  # of these, before the last checkpoint

    def spans(self) -> Iterator[Span]:
        """Yield what it did, without times of no length."""
        first = self.stop if self.first_step is None else self.first_step
        kept = self.stop if self.cause is None else max([first, *(at for at in self.saves if at <= self.stop)])
        for span in (Span(STARTING, self.start, first), Span(COUNTED, first, kept), Span(REPEATED, kept, self.stop)):
            if span.seconds > 0:
                yield span


@dataclasses.dataclass
class Worker:
    """What one rank did, in all of its processes."""

    rank: int
    hosts: list[str] = dataclasses.field(default_factory=list)
    processes: int = 0
    steps: int = 0
    stepping: float = 0.0  # seconds
    waited: float = 0.0  # seconds of these
    failures: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    ran: list[Span] = dataclasses.field(default_factory=list)  # the time of each process
    last: tuple[float, int, float] | None = None  # when its step and waiting time were written last, and what they were

    @property
    def own_seconds(self) -> float | None:
        """The seconds per step without those spent waiting for results; None if it ran none."""
        return max(0.0, self.stepping - self.waited) / self.steps if self.steps else None


@dataclasses.dataclass
class Account:
    """A whole job."""

    command: str
    start: float
    stop: float = 0.0
    code: int | None = None  # None if the log has no end
    periods: list[Period] = dataclasses.field(default_factory=list)
    workers: dict[int, Worker] = dataclasses.field(default_factory=dict)
    saves: list[float] = dataclasses.field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        """What the job did, from its start to its end without holes."""
        found: list[Span] = []
        for period in self.periods:
            before = found[-1].stop if found else self.start
            if period.start > before:
                found.append(Span(DOWN, before, period.start))
            found += period.spans()
        last = found[-1].stop if found else self.start
        return [*found, Span(DOWN, last, self.stop)] if self.stop > last else found

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each kind."""
        return {kind: sum(span.seconds for span in self.spans if span.kind == kind) for kind in KINDS}

    @property
    def goodput(self) -> float:
        """The share of the time in steps that counted."""
        whole = self.stop - self.start
        return self.seconds[COUNTED] / whole if whole > 0 else 0.0

    @property
    def losses(self) -> list[tuple[str, float]]:
        """Why periods ended, and the seconds that each end cost: steps that were run again, and the time until the next step."""
        found = []
        for i, period in enumerate(self.periods):
            if period.cause is not None:
                again = sum(span.seconds for span in period.spans() if span.kind == REPEATED)
                rest = self.periods[i + 1 : i + 2]
                until = (rest[0].stop if rest[0].first_step is None else rest[0].first_step) if rest else self.stop
                found.append((period.cause, again + until - period.stop))
        return found


def read_jobs(lines: Iterable[str]) -> list[list[dict[str, Any]]]:
    """Return the events of each job in a run log. A last line that is cut off is left out: the launcher was killed in it.

    Raises:
        CommandError: If another line is not one of a run log. The message has its number.
    """
    jobs: list[list[dict[str, Any]]] = []
    broken: int | None = None
    for number, line in enumerate(lines, 1):
        event = _event(line)
        if event is None and line.endswith("\n"):
            broken = broken or number
        if event is None:
            continue
        if event["kind"] == "job":
            jobs.append([])
        if not jobs:
            broken = broken or number
        else:
            jobs[-1].append(event)
    if broken is not None or not jobs:
        where = f"line {broken} of it is none" if broken else "it is empty"
        raise CommandError(f"this is not a run log of `replicant launch`: {where}.")
    return jobs


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str) or not isinstance(event.get("t"), int | float):
        return None
    return event


def account(events: Iterable[Mapping[str, Any]]) -> Account:
    """Work out what a job did from its events, of which the first begins it. Kinds that are not known are left out."""
    events = iter(events)
    first = next(events)
    scan = _Scan(Account(" ".join(map(str, first.get("command", ()))), first["t"], first["t"]))
    for event in events:
        scan.job.stop = max(scan.job.stop, event["t"])
        scan.take(event["kind"], event["t"], event)
    return scan.finish()


class _Scan:
    """Goes through the events in their order."""

    def __init__(self, job: Account) -> None:
        self.job = job
        self.period: Period | None = None  # that has not ended
        self.generation = -1
        self.begun: dict[int, int] = {}  # the step of each rank at the beginning of the period
        self.alive: dict[int, float] = {}  # since when each rank's process runs

    def take(self, kind: str, at: float, event: Mapping[str, Any]) -> None:
        """Take in an event."""
        known = {
            "start": self._start,
            "came": self._came,
            "formed": self._formed,
            "steps": self._steps,
            "saved": self._saved,
            "failed": self._failed,
            "ended": self._ended,
            "done": self._done,
        }
        if kind in known:
            known[kind](at, event)

    def finish(self) -> Account:
        """Close what is open, and return the account."""
        for rank in list(self.alive):
            self._gone(rank, self.job.stop)
        if self.period is not None:
            self._end(self.job.stop, None)
        return self.job

    def _worker(self, rank: int) -> Worker:
        return self.job.workers.setdefault(rank, Worker(rank))

    def _start(self, at: float, event: Mapping[str, Any]) -> None:
        rank, worker = event["rank"], self._worker(event["rank"])
        worker.processes += 1
        worker.last = None
        self._gone(rank, at)
        self.alive[rank] = at
        if event["generation"] > self.generation:
            self._open(at, event["generation"])
        self.begun[rank] = 0

    def _came(self, at: float, event: Mapping[str, Any]) -> None:
        del at
        hosts = self._worker(event["rank"]).hosts
        if event["host"] not in hosts:
            hosts.append(event["host"])

    def _formed(self, at: float, event: Mapping[str, Any]) -> None:
        if self.period is not None:
            self._end(at, _CHANGED)
        self._open(at, event["generation"])

    def _steps(self, at: float, event: Mapping[str, Any]) -> None:
        for rank, (step, waited, _) in event["workers"].items():
            self._step(at, int(rank), step, waited)

    def _failed(self, at: float, event: Mapping[str, Any]) -> None:
        rank, what = event["rank"], event["what"]
        if rank >= 0:
            self._worker(rank).failures.append((at, what))
        if self.period is not None:
            self._end(at, f"rank {rank} {what}" if rank >= 0 else what)

    def _ended(self, at: float, event: Mapping[str, Any]) -> None:
        self._gone(event["rank"], at)

    def _done(self, at: float, event: Mapping[str, Any]) -> None:
        del at
        self.job.code = event["code"]

    def _gone(self, rank: int, at: float) -> None:
        if (since := self.alive.pop(rank, None)) is not None:
            self._worker(rank).ran.append(Span("ran", since, at))

    def _open(self, at: float, generation: int) -> None:
        self.generation = generation
        self.period = Period(generation, at)
        self.job.periods.append(self.period)
        self.begun = {rank: worker.last[1] if worker.last else 0 for rank, worker in self.job.workers.items()}

    def _end(self, at: float, cause: str | None) -> None:
        assert self.period is not None
        self.period.stop, self.period.cause = at, cause
        if cause is None:
            self.period.counted_steps = self.period.steps
        self.period = None

    def _step(self, at: float, rank: int, step: int, waited: float) -> None:
        worker = self._worker(rank)
        if worker.last is not None and step > worker.last[1]:
            worker.stepping += at - worker.last[0]
            worker.waited += max(0.0, waited - worker.last[2])
            worker.steps += step - worker.last[1]
        elif worker.last is None:
            worker.steps += step
        worker.last = (at, step, waited)
        if self.period is not None and (done := step - self.begun.get(rank, 0)) > 0:
            self.period.steps = max(self.period.steps, done)
            if self.period.first_step is None:
                self.period.first_step = at

    def _saved(self, at: float, event: Mapping[str, Any]) -> None:
        taken = at - float(event.get("seconds") or 0.0)
        self.job.saves.append(taken)
        if self.period is not None:
            self.period.saves.append(taken)
            self.period.counted_steps = max(0, int(event.get("step") or 0) - self.begun.get(event["rank"], 0))
            self.period.steps = max(self.period.steps, self.period.counted_steps)
            if self.period.first_step is None and self.period.counted_steps:
                self.period.first_step = min(at, max(self.period.start, taken))
