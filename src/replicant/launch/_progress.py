"""How far and how fast workers are, from their signs of life. Pure: the time is an argument."""

import collections
import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

_WINDOW = 20  # signs of life that a rate is worked out from
_FACTOR = 2.0  # a straggler takes that many times as long as the others
_LEAST_STEPS = 5  # the first ones compile
_LEAST_SECONDS = 0.01  # per step, below which nobody is called slow


@dataclasses.dataclass(frozen=True)
class Mark:
    """One sign of life: the step, when it began (the worker's clock), and the seconds that it had waited for results until then."""

    step: int
    at: float
    waited: float


class Progress:
    """What is known of one worker."""

    def __init__(self) -> None:
        self.host = ""
        self.step = 0
        self.phase = ""
        self.seen: float | None = None  # its last sign of life; the supervisor's clock
        self.moved: float | None = None  # its last new step; the supervisor's clock
        self._marks: collections.deque[Mark] = collections.deque(maxlen=_WINDOW)

    def hello(self, now: float, host: str) -> None:
        """It has connected."""
        self.seen = self.moved = now
        self.host = host

    def beat(self, now: float, message: Mapping[str, Any]) -> None:
        """Take a message in. What is no number is ignored: it is no sign of life."""
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
    def steps_per_second(self) -> float | None:
        """Of the last signs of life; None: not known yet."""
        seconds = self._difference("at")
        steps = self._difference("step")
        return steps / seconds if steps > 0 and seconds > 0 else None

    @property
    def own_seconds(self) -> float | None:
        """Per step, without waiting for results."""
        steps = self._difference("step")
        return max(0.0, self._difference("at") - self._difference("waited")) / steps if steps >= _LEAST_STEPS else None

    def _difference(self, name: str) -> float:
        return getattr(self._marks[-1], name) - getattr(self._marks[0], name) if self._marks else 0.0


def slowest(progress: Mapping[int, Progress]) -> tuple[int, float] | None:
    """The worker with the most seconds of its own per step, and those; None while fewer than two are known."""
    known = {rank: each.own_seconds for rank, each in progress.items() if each.own_seconds is not None}
    if len(known) < 2:
        return None
    rank = max(known, key=lambda rank: known[rank] or 0.0)
    return rank, known[rank] or 0.0


def straggler(progress: Mapping[int, Progress]) -> tuple[int, float, float] | None:
    """A worker that takes more than twice as long as the median of the others: its rank, its seconds per step, theirs."""
    found = slowest(progress)
    if found is None:
        return None
    rank, seconds = found
    known = [each.own_seconds for other, each in progress.items() if other != rank]
    others = statistics.median([each for each in known if each is not None])
    return (rank, seconds, others) if seconds > max(_FACTOR * others, _LEAST_SECONDS) else None


def status_line(generation: int, progress: Mapping[int, Progress]) -> str:
    """One line on all workers.

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
