"""Finds processes that are lost although their channels are open, and workers that do not do what they were sent.

A frozen process sends nothing, and the channel of a dead one stays open if a process that it forked holds it. So the cluster
checks once a second.
"""

from typing import Any

from ..wire._pulse import Vigil, processor_seconds

_LAST_WORDS_SECONDS = 2.0  # without a message from an ended process, until no further message is expected


class Health:
    """What is known about one server or worker, besides its messages."""

    def __init__(self) -> None:
        self._start, self._silence, self._end, self._doubt = Vigil(), Vigil(), Vigil(), Vigil()

    def has_ended(self, running: Any, num_received: int, passed: float) -> bool:
        """Whether its process has ended and all of its messages have been read. `passed`: seconds since the last check."""
        if getattr(running, "pulse", None) is None:
            return False
        ended = running.ended() is not None
        return self._end.look((ended, num_received), passed) >= _LAST_WORDS_SECONDS and ended

    def overdue(self, running: Any, passed: float, *, ready: bool, start: float, heartbeat: float) -> str | None:
        """Why it must be ended, in words: no start in `start` seconds, or no heartbeat in `heartbeat` seconds; otherwise None."""
        pulse = getattr(running, "pulse", None)
        if pulse is None:
            return None
        if self._start.look(ready, passed) >= start and not ready:
            self._start = Vigil()
            return f"did not start within {start:.0f} s"
        sign = pulse.beats, processor_seconds(running.pid) if running.pid else ""
        if self._silence.look(sign, passed) >= heartbeat and pulse.beats:
            self._silence = Vigil()
            return f"had no heartbeat for {heartbeat:.0f} s"
        return None

    def disagrees(self, running: Any, believed: tuple[int, int] | None, unsent: int, passed: float) -> float:
        """For how many seconds a worker has not been running the closure and attempt that it should be.

        `unsent`: how many bytes of messages to it have not left yet.
        """
        pulse = getattr(running, "pulse", None)
        if pulse is None or not pulse.beats:
            return 0.0
        real = pulse.executing
        sign = (None, real) if real == believed else (believed or real, unsent)
        seconds = self._doubt.look(sign, passed)
        return 0.0 if real == believed else seconds
