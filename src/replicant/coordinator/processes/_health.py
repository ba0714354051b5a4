"""Who must be taken for lost though no channel has said so, and whether a worker does what it is believed to do.

A process that stands still sends nothing, and neither does one whose channel a process that it has forked keeps open. So once a
second somebody looks.
"""

from typing import Any

from ..wire._pulse import Vigil, processor_seconds

_LAST_WORDS_SECONDS = 2.0  # without news from a process that has ended, until it is taken for all that it said


class Health:
    """What is known of one server or worker, besides what it says."""

    def __init__(self) -> None:
        self._start, self._silence, self._end, self._doubt = Vigil(), Vigil(), Vigil(), Vigil()

    def has_ended(self, running: Any, num_received: int, passed: float) -> bool:
        """Whether its process has ended and all that it said has been taken in. passed: seconds since the last look."""
        if getattr(running, "pulse", None) is None:
            return False
        ended = running.ended() is not None
        return self._end.look((ended, num_received), passed) >= _LAST_WORDS_SECONDS and ended

    def overdue(self, running: Any, passed: float, *, ready: bool, start: float, heartbeat: float) -> str | None:
        """Why it is to be ended, in words; None if it need not be. start, heartbeat: seconds that it may take."""
        pulse = getattr(running, "pulse", None)
        if pulse is None:
            return None
        if self._start.look(ready, passed) >= start and not ready:
            self._start = Vigil()
            return f"did not start within {start:.0f} s"
        sign = pulse.beats, processor_seconds(running.pid) if running.pid else ""
        if self._silence.look(sign, passed) >= heartbeat and pulse.beats:
            self._silence = Vigil()
            return f"gave no sign of life for {heartbeat:.0f} s"
        return None

    def disagrees(self, running: Any, believed: tuple[int, int] | None, unsent: int, passed: float) -> float:
        """For how many seconds a worker has not been doing what it is believed to be: calling this closure, in this attempt.

        unsent: bytes of what it was given that have not left yet.
        """
        pulse = getattr(running, "pulse", None)
        if pulse is None or not pulse.beats:
            return 0.0
        real = pulse.executing
        sign = (None, real) if real == believed else (believed or real, unsent)
        seconds = self._doubt.look(sign, passed)
        return 0.0 if real == believed else seconds
