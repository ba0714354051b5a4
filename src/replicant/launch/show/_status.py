"""How a job is now, from the events of its run log. Nothing here reads the clock or a file."""

import collections
import dataclasses
import statistics
from pathlib import Path

from ..record._events import Event

_WINDOW = 20  # lines about steps from which a rate is computed
_LEAST_STEPS = 5  # before the time of a step counts
_LONGEST = 200  # characters of a name
_OVER = ("ended", "failed")  # what the state of a worker without a process begins with


@dataclasses.dataclass(frozen=True)
class WorkerView:
    """One rank, as it is now."""

    rank: int
    host: str
    pid: int | None  # of its last process
    state: str  # "starting", the phase that it reports, "ended", or "failed: " and how
    step: int
    idle: float | None  # seconds since its step changed
    rate: float | None  # steps per second
    own: float | None  # seconds per step without waiting for results
    processes: int

    @property
    def is_alive(self) -> bool:
        """Whether it has a process."""
        return not self.state.startswith(_OVER)


@dataclasses.dataclass(frozen=True)
class View:
    """A whole job, as it is now. It has nothing of the program but its name, and what its checkpoints and steps are numbered."""

    program: str
    seconds: float  # since it began
    code: int | None  # None if it runs, or has been cut off
    generation: int
    workers: tuple[WorkerView, ...]
    failures: int
    last_failure: tuple[int, str, float] | None  # rank, kind, and how many seconds ago
    saved: tuple[int | None, float] | None  # the step of the last checkpoint, and how many seconds ago

    @property
    def alive(self) -> int:
        """How many workers have a process."""
        return sum(worker.is_alive for worker in self.workers)

    @property
    def step(self) -> int:
        """The step of the slowest of the workers that have a process; if none has, the last step of all."""
        alive = [worker.step for worker in self.workers if worker.is_alive]
        return min(alive) if alive else max((worker.step for worker in self.workers), default=0)

    @property
    def rate(self) -> float | None:
        """The steps per second of the slowest of them."""
        return min((worker.rate for worker in self.workers if worker.is_alive and worker.rate is not None), default=None)

    @property
    def slowest(self) -> tuple[WorkerView, float] | None:
        """The worker that takes longest for a step, and the median of the others; None if fewer than two are known."""
        known = [worker for worker in self.workers if worker.is_alive and worker.own is not None]
        if len(known) < 2:
            return None
        found = max(known, key=lambda worker: worker.own or 0.0)
        return found, statistics.median([worker.own or 0.0 for worker in known if worker is not found])


@dataclasses.dataclass
class _Worker:
    host: str = ""
    pid: int | None = None
    state: str = "starting"
    processes: int = 0
    marks: collections.deque[tuple[float, int, float]] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_WINDOW)
    )  # time, step, and seconds waited

    def view(self, rank: int, now: float) -> WorkerView:
        at, step, waited = self.marks[-1] if self.marks else (now, 0, 0.0)
        first = self.marks[0] if self.marks else (at, step, waited)
        seconds, steps = at - first[0], step - first[1]
        idle = max(0.0, now - at)
        is_alive = not self.state.startswith(_OVER)
        rate = steps / max(seconds, idle) if is_alive and steps > 0 and seconds > 0 else None
        own = max(0.0, seconds - (waited - first[2])) / steps if steps >= _LEAST_STEPS else None
        return WorkerView(rank, self.host, self.pid, self.state, step, idle if self.marks else None, rate, own, self.processes)


class Status:
    """Keeps track of one job.

    Args:
        first: The event with which it begins.
    """

    def __init__(self, first: Event):
        self.first = first
        self._latest: float = first["t"]
        self._code: int | None = None
        self._generation = 0
        self._workers: dict[int, _Worker] = {}
        self._failures = 0
        self._last_failure: tuple[int, str, float] | None = None
        self._saved: tuple[int | None, float] | None = None

    def take(self, event: Event) -> None:
        """Take in an event of the job."""
        at = self._latest = max(self._latest, event["t"])
        match event["kind"]:
            case "start":
                worker = self._worker(event["rank"])
                worker.pid, worker.state, worker.processes = event.get("pid"), "starting", worker.processes + 1
                worker.marks.clear()
                self._generation = max(self._generation, event["generation"])
            case "came":
                self._worker(event["rank"]).host = event["host"][:_LONGEST]
            case "formed":
                self._generation = event["generation"]
            case "steps":
                for rank, (step, waited, phase) in event["workers"].items():
                    self._step(int(rank), at, step, waited, phase)
            case "saved":
                self._saved = event.get("step"), at
            case "failed":
                self._fail(at, event)
            case "ended":
                worker = self._worker(event["rank"])
                worker.state = worker.state if worker.state.startswith("failed") else "ended"
            case "done":
                self._code = event["code"]

    def view(self, now: float) -> View:
        """Return how the job is.

        Args:
            now: The time, in seconds since 1970.
        """
        now = max(now, self._latest) if self._code is None else self._latest
        failure, saved = self._last_failure, self._saved
        return View(
            program_of(self.first),
            now - self.first["t"],
            self._code,
            self._generation,
            tuple(worker.view(rank, now) for rank, worker in sorted(self._workers.items())),
            self._failures,
            None if failure is None else (failure[0], failure[1], now - failure[2]),
            None if saved is None else (saved[0], now - saved[1]),
        )

    def _worker(self, rank: int) -> _Worker:
        return self._workers.setdefault(rank, _Worker())

    def _step(self, rank: int, at: float, step: int, waited: float, phase: str) -> None:
        worker = self._worker(rank)
        if not worker.state.startswith(_OVER):
            worker.state = phase[:_LONGEST]
        if not worker.marks or step != worker.marks[-1][1]:
            worker.marks.append((at, step, waited))

    def _fail(self, at: float, event: Event) -> None:
        rank, kind = event["rank"], str(event.get("cause") or "unknown")[:_LONGEST]
        self._failures += 1
        self._last_failure = rank, kind, at
        if rank >= 0:
            self._worker(rank).state = f"failed: {kind}"


def program_of(first: Event) -> str:
    """The name of a job's program, without its folder and its arguments, which may hold secrets.

    >>> program_of({"command": ["/usr/bin/python", "/home/me/train.py", "--key", "secret"]})
    'train.py'
    >>> program_of({"command": ["python", "-m", "my.training"]})
    'my.training'
    """
    words = [str(word) for word in first.get("command") or ()][1:]
    name = words[1] if words[:1] == ["-m"] and len(words) > 1 else words[0] if words else "?"
    return Path(name).name[:_LONGEST]
