"""Decides what to do about failed workers. Everything here is a pure function."""

import dataclasses
import enum
import signal
from collections.abc import Mapping, Sequence

DEADLINE_CODE = 124  # the same as that of timeout(1)
_LOST = ("WorkerLostError",)  # this worker is fine, but has lost another one
_RUNTIME = ("JaxRuntimeError", "XlaRuntimeError")  # often the same
_SHORT_SECONDS = 10.0
_MAX_PAUSE = 60.0
_MOST_DOUBLINGS = 6  # of a pause; more would be longer than the longest


class Kind(enum.Enum):
    """How a worker failed."""

    SIGNAL = "was ended by {text}"
    EXIT = "ended with exit code {code}"
    RAISED = "failed: {text}"
    FROZEN = "sent no heartbeat for {text}, and was killed"
    LATE = "did not come within {text} after the first worker"
    HELD = "did not leave its step for {text} when the workers were to form a new group, and was killed"
    STUCK = "ran no step for {text} after {other} had ended its program"
    STALLED = "ran no step for {text}"
    LEFT = "ended its program (exit code 0) before the others, which cannot go on without it"
    CUT = "is lost with its host: {text}"
    PREEMPTED = "was asked to leave (exit code {code})"
    LOST = "could not go on without another worker: {text}"
    ASKED = "was asked to end: {text}"


_ORDER = (
    Kind.ASKED,
    Kind.LEFT,
    Kind.SIGNAL,
    Kind.CUT,
    Kind.FROZEN,
    Kind.LATE,
    Kind.HELD,
    Kind.EXIT,
    Kind.RAISED,
    Kind.STUCK,
    Kind.STALLED,
)
_WEIGHT = dict.fromkeys(_ORDER, 0) | {Kind.PREEMPTED: 1, Kind.LOST: 3}


@dataclasses.dataclass(frozen=True)
class Failure:
    """What happened to one worker.

    Args:
        rank: The rank of the worker.
        kind: How it failed.
        code: The exit code of the job if this failure ends it.
        text: Details for the message.
        other: Another worker that is involved, for the message.
    """

    rank: int
    kind: Kind
    code: int
    text: str = ""
    other: str = ""

    def __str__(self) -> str:
        return self.kind.value.format(text=self.text, code=self.code, other=self.other)

    @property
    def weight(self) -> int:
        """How far this failure is from the cause of all. What a worker says about the end of others is not a cause."""
        if self.kind is Kind.RAISED and self.text.split(":")[0] in _RUNTIME:
            return 2
        return _WEIGHT[self.kind]


def exit_code(code: int) -> int:
    """Convert an exit code from that of subprocess to that of a shell.

    >>> exit_code(-9), exit_code(3)
    (137, 3)
    """
    return 128 - code if code < 0 else code


def of_exit(rank: int, code: int, preempted_code: int, reported: str | None = None) -> Failure | None:
    """The failure that the end of a worker means, or None if it ended without one.

    Args:
        rank: The rank of the worker.
        code: Its exit code, as in subprocess.
        preempted_code: The exit code of a program that was asked to leave.
        reported: The error that the worker has reported, if any.

    >>> print(of_exit(1, -11, 143))
    was ended by SIGSEGV
    """
    if code == 0 and reported is None:
        return None
    if reported is not None:
        kind = Kind.LOST if reported.split(":")[0] in _LOST else Kind.RAISED
        return Failure(rank, kind, exit_code(code) or 1, reported)
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:  # real-time signals
            name = f"signal {-code}"
        return Failure(rank, Kind.SIGNAL, exit_code(code), name)
    return Failure(rank, Kind.PREEMPTED if code == preempted_code else Kind.EXIT, code)


def first_cause(failures: Sequence[Failure], left: Sequence[int] = ()) -> Failure:
    """Find the failure that caused the others.

    Args:
        failures: At least one failure, in the order in which they were noticed.
        left: The ranks of workers that had ended without an error before the first failure, in order.
    """
    found = min(failures, key=lambda failure: failure.weight)  # the first of those with the least weight
    if left and found.weight >= 2:
        return Failure(left[0], Kind.LEFT, found.code, other=str(found))
    return found


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do: start the job again, or end it with an exit code."""

    restart: bool
    code: int
    counts: bool = True
    pause: float = 0.0
    reason: str = ""


def decide(cause: Failure, restarts: int, max_restarts: int, lived: float, short_lives: int) -> Decision:
    """Decide what to do once all workers of a generation have ended.

    Args:
        cause: The failure that ended the generation.
        restarts: The number of restarts that have been counted so far.
        max_restarts: The number of restarts that may be counted.
        lived: The seconds for which the generation has run.
        short_lives: The number of generations directly before it that ran only for a short time.

    >>> decide(Failure(0, Kind.SIGNAL, 137, "SIGKILL"), 0, 1, 60.0, 0).restart
    True
    """
    if cause.kind is Kind.ASKED:
        return Decision(restart=False, code=cause.code)
    if not max_restarts:
        return Decision(restart=False, code=cause.code, reason="--max-restarts is 0")
    pause = min(_MAX_PAUSE, 2.0 ** min(short_lives, _MOST_DOUBLINGS)) if short_lives and lived < _SHORT_SECONDS else 0.0
    if cause.kind is Kind.PREEMPTED:
        return Decision(restart=True, code=cause.code, counts=False, pause=pause)
    if restarts >= max_restarts:
        return Decision(restart=False, code=cause.code, reason=f"all {max_restarts} restart(s) of --max-restarts are used up")
    return Decision(restart=True, code=cause.code, pause=pause)


def is_short(lived: float) -> bool:
    """Whether a generation ran for so short a time that the next ones must not start at once."""
    return lived < _SHORT_SECONDS


def describe(cause: Failure, facts: Mapping[str, object]) -> str:
    """Describe a failure and the worker.

    >>> print(describe(Failure(2, Kind.SIGNAL, 137, "SIGKILL"), {"host": "node1", "pid": 7, "step": 40, "log": "run/rank-2.log"}))
    rank 2 (host node1, pid 7) was ended by SIGKILL; its last step: 40; its log: run/rank-2.log
    """
    who = ", ".join(f"{name} {facts[name]}" for name in ("host", "pid") if facts.get(name))
    step = f"; its last step: {facts['step']}" if facts.get("step") else "; it had run no step yet"
    return f"rank {cause.rank} ({who}) {cause}{step}; its log: {facts.get('log')}"
