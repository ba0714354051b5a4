"""What a tracker is."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True)
class Row:
    """The values of one step.

    Args:
        step: The step.
        values: Numbers by their names.
        time: When they were logged, in seconds since 1970.
    """

    step: int
    values: Mapping[str, float]
    time: float


class Tracker(Protocol):
    """Something that keeps the values of a run. All of its methods are called by one thread, which is not the training's.

    A method that raises is called again: `begin` until it succeeds, and `write` with the next rows. It need not repeat itself.
    """

    def begin(self, config: Mapping[str, Any]) -> None:
        """Begin a run with these settings."""
        ...

    def write(self, rows: Sequence[Row]) -> None:
        """Keep rows, which come in the order in which they were logged. If this raises, all of them count as lost."""
        ...

    def end(self, *, failed: bool) -> None:
        """Keep everything that was written, and end the run."""
        ...
