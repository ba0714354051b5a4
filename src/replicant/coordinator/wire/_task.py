"""One attempt at a closure, as it is sent to a worker."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Task:
    """One attempt at a closure.

    Attributes:
        low_water: the number below which all closures have ended for good.
        holds: whether its changes are returned with its result instead of being pushed.
    """

    closure: int
    attempt: int
    low_water: int
    holds: bool = False

    def __reduce__(self) -> Any:  # several times faster than the default for dataclasses
        return Task, (self.closure, self.attempt, self.low_water, self.holds)
