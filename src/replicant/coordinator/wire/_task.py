"""One attempt at a closure, as it is sent to a worker."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Task:
    """One attempt at a closure. low_water: all closures with smaller numbers have ended for good.

    holds: its changes are handed over with its result, instead of being pushed.
    """

    closure: int
    attempt: int
    low_water: int
    holds: bool = False

    def __reduce__(self) -> Any:  # several times as fast as what dataclasses have
        return Task, (self.closure, self.attempt, self.low_water, self.holds)
