"""Works out from heartbeats how far and how fast the workers are. Nothing here reads the clock: the time is an argument."""

import collections
import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

_WINDOW = 20  # heartbeats from which a rate is computed
_FACTOR = 2.0  # how many times as long as the others a straggler takes
_LEAST_STEPS = 5  # before a time counts, because the first steps compile
_LEAST_SECONDS = 0.01  # per step; a worker that takes less is never called slow


@dataclasses.dataclass(frozen=True)
class Mark:
    """One heartbeat: the step, when it began on the worker's clock, and for how many seconds the worker had waited for results."""

    step: int
    at: float
    waited: float


class Progress:
    """What is known about one worker."""

    def __init__(self) -> None:
        self.host = ""
        self.step = 0
        self.phase = ""
        self.seen: float | None = None  # its last heartbeat, on the supervisor's clock
        self.moved: float | None = None  # its last new step, on the supervisor's clock
        self._marks: collections.deque[Mark] = collections.deque(maxlen=_WINDOW)

    def hello(self, now: float, host: str) -> None:
        """Note that the worker has connected."""
        self.seen = self.moved = now
        self.host = host

    def beat(self, now: float, message: Mapping[str, Any]) -> None:
        """Take in a heartbeat. A message without numbers is ignored, and does not count as one."""
        step, at, waited = (message.get(name) for name in ("step", "at", "waited"))
        if type(step) is not int or not isinstance(at, int | float) or not isinstance(waited, int | float):
            return
        self.seen = now
        self.phase = str(message.get("phase", ""))
        if not self._marks or step != self._marks[-1].step:
            self._marks.append(Mark(step, at, waited))
            self.moved = now
        self.step = step

    @property
    def waited(self) -> float:
        """For how many seconds the worker has waited for results."""
        return self._marks[-1].waited if self._marks else 0.0

    @property
    def steps_per_second(self) -> float | None:
        """The steps per second over the last heartbeats, or None if they are not known yet."""
        seconds = self._difference("at")
        steps = self._difference("step")
        return steps / seconds if steps > 0 and seconds > 0 else None

    @property
    def own_seconds(self) -> float | None:
        """The seconds per step without those spent waiting for results, or None if they are not known yet."""
        steps = self._difference("step")
        return max(0.0, self._difference("at") - self._difference("waited")) / steps if steps >= _LEAST_STEPS else None

    def _difference(self, name: str) -> float:
        return getattr(self._marks[-1], name) - getattr(self._marks[0], name) if self._marks else 0.0


def slowest(progress: Mapping[int, Progress]) -> tuple[int, float] | None:
    """The worker with the most seconds of its own per step, and these seconds, or None if fewer than two workers are known."""
    known = {rank: each.own_seconds for rank, each in progress.items() if each.own_seconds is not None}
    if len(known) < 2:
        return None
    rank = max(known, key=lambda rank: known[rank] or 0.0)
    return rank, known[rank] or 0.0


def straggler(progress: Mapping[int, Progress]) -> tuple[int, float, float] | None:
    """Find a worker that takes more than twice as long as the median of the others.

    Returns:
        Its rank, its seconds per step, and the median of the others, or None if there is no such worker.
    """
    found = slowest(progress)
    if found is None:
        return None
    rank, seconds = found
    known = [each.own_seconds for other, each in progress.items() if other != rank]
    others = statistics.median([each for each in known if each is not None])
    return (rank, seconds, others) if seconds > max(_FACTOR * others, _LEAST_SECONDS) else None


def status_line(generation: int, progress: Mapping[int, Progress]) -> str:
    """One line about all workers.

    >>> status_line(0, {0: Progress()})
    'generation 0, 1 worker(s), starting'
    """
    head = f"generation {generation}, {len(progress)} worker(s)"
    rates = [each.steps_per_second for each in progress.values()]
    if not any(rates):
        return f"{head}, starting" if all(not each.step for each in progress.values()) else head
    shown = " ".join("-" if rate is None else f"{rate:.3g}" for rate in rates[:8]) + (" ..." if len(rates) > 8 else "")
    line = f"{head}, step {min(each.step for each in progress.values())}, steps/s {shown}"
    found = slowest(progress)
    return line if found is None else f"{line}, slowest: rank {found[0]} ({found[1]:.2g} s of its own per step)"
