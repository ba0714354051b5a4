"""What a job did with its time, worked out from its run log. Nothing here writes or draws.

The job's time is divided into periods: one for each group of workers that trained together. A period begins with starting, until a
worker has run a step. If it ends because workers fail or change, the steps after its last checkpoint are run again later.
"""

import dataclasses
from array import array
from collections.abc import Iterable, Iterator

from ._events import Event

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
    saved: float | None = None  # when the state was taken that the last complete checkpoint holds
    cause: str | None = None  # why it ended, if others had to go on
    steps: int = 0  # that its fastest worker has run
    counted_steps: int = 0  # of these, before the last checkpoint

    def spans(self) -> Iterator[Span]:
        """Yield what it did, without times of no length."""
        first = self.stop if self.first_step is None else self.first_step
        kept = self.stop if self.cause is None else min(self.stop, max(first, first if self.saved is None else self.saved))
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
    saves: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    went_back: int = 0  # how often the clock did

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


def coarse(spans: Iterable[Span], least: float) -> list[Span]:
    """Return spans without those too short to be seen: neighbours become one, of the kind of most of their time.

    Args:
        spans: Spans without holes, in order.
        least: The seconds from which a span stays as it is.

    >>> coarse([Span("a", 0, 5), Span("b", 5, 5.1), Span("a", 5.1, 5.6), Span("b", 5.6, 8)], 0.5)
    [Span(kind='a', start=0, stop=5), Span(kind='a', start=5, stop=5.6), Span(kind='b', start=5.6, stop=8)]
    """
    found: list[Span] = []
    short: list[Span] = []
    for span in spans:
        if not short and span.seconds >= least:
            found.append(span)
            continue
        short.append(span)
        if span.stop - short[0].start >= least:
            found.append(_joined(short))
            short = []
    return [*found, _joined(short)] if short else found


def _joined(spans: list[Span]) -> Span:
    seconds = dict.fromkeys((span.kind for span in spans), 0.0)
    for span in spans:
        seconds[span.kind] += span.seconds
    return Span(max(seconds, key=lambda kind: seconds[kind]), spans[0].start, spans[-1].stop)


def read_job(events: Iterable[Event], number: int | None = None) -> tuple[Account | None, int]:
    """Work out what one of the jobs in a run log did, from one pass over its events. Kinds that are not known are left out.

    Args:
        events: The events of all jobs, of which several may have run at the same time.
        number: Which job, counted from 1 in the order in which they began. By default the last.

    Returns:
        The account, or None if there is no such job, and the number of jobs.
    """
    count, scan, name, is_over = 0, None, None, False
    for event in events:
        if event["kind"] == "job":
            count += 1
            if number is None or number == count:
                name = event.get("job")
                scan = _Scan(Account(" ".join(map(str, event.get("command") or ())), event["t"], event["t"]))
            else:
                is_over = is_over or (scan is not None and name is None)  # an old log, whose lines have no names of jobs
        elif scan is not None and not is_over and event.get("job") == name:
            scan.take(event)
    return (None if scan is None else scan.finish()), count


class _Scan:
    """Goes through the events in their order."""

    def __init__(self, job: Account) -> None:
        self.job = job
        self.period: Period | None = None  # that has not ended
        self.generation = -1
        self.begun: dict[int, int] = {}  # the step of each rank at the beginning of the period
        self.alive: dict[int, float] = {}  # since when each rank's process runs
        self._latest = job.start

    def take(self, event: Event) -> None:
        """Take in an event. If the clock was set back, it stands still until it has caught up."""
        self.job.went_back += event["t"] < self._latest
        self._latest = event["t"]
        self.job.stop = max(self.job.stop, self._latest)
        kind, at = event["kind"], self.job.stop
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

    def _start(self, at: float, event: Event) -> None:
        rank, worker = event["rank"], self._worker(event["rank"])
        worker.processes += 1
        worker.last = None
        self._gone(rank, at)
        self.alive[rank] = at
        if event["generation"] > self.generation:
            self._open(at, event["generation"])
        self.begun[rank] = 0

    def _came(self, at: float, event: Event) -> None:
        del at
        hosts = self._worker(event["rank"]).hosts
        if event["host"] not in hosts:
            hosts.append(event["host"])

    def _formed(self, at: float, event: Event) -> None:
        if self.period is not None:
            self._end(at, _CHANGED)
        self._open(at, event["generation"])

    def _steps(self, at: float, event: Event) -> None:
        for rank, (step, waited, _) in event["workers"].items():
            self._step(at, int(rank), step, waited)

    def _failed(self, at: float, event: Event) -> None:
        rank, what = event["rank"], event["what"]
        if rank >= 0:
            self._worker(rank).failures.append((at, what))
        if self.period is not None:
            self._end(at, f"rank {rank} {what}" if rank >= 0 else what)

    def _ended(self, at: float, event: Event) -> None:
        self._gone(event["rank"], at)

    def _done(self, at: float, event: Event) -> None:
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

    def _saved(self, at: float, event: Event) -> None:
        taken = max(self.job.start, at - max(0.0, event.get("seconds") or 0.0))
        self.job.saves.append(taken)
        if self.period is not None:
            self.period.saved = max(taken, taken if self.period.saved is None else self.period.saved)
            self.period.counted_steps = max(0, (event.get("step") or 0) - self.begun.get(event["rank"], 0))
            self.period.steps = max(self.period.steps, self.period.counted_steps)
            if self.period.first_step is None and self.period.counted_steps:
                self.period.first_step = min(at, max(self.period.start, taken))
