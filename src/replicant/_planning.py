"""What ``replicant plan`` asks of a program: strategies with as many replicas as are planned for, and its first training step."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Held:
    """An array of a training step.

    kind: "weights", "optimizer state", "other state" or "batch". layout: "mirrored", "stacked" (a row for each replica) or "sliced"
    (cut along an axis).
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: Any
    layout: str


class StepFound(BaseException):
    """Ends a program at its first training step. Not an Exception: programs catch those.

    Args:
        lower: gives the step, lowered by JAX, for the devices of a placement.
        held: what it reads.
    """

    def __init__(self, lower: Callable[[Any], Any], held: Sequence[Held]):
        super().__init__("the first training step")
        self.lower = lower
        self.held = tuple(held)


class Planning:
    """A plan in the making. `placement` is what every strategy gets, whatever devices the program asks for."""

    def __init__(self, placement: Any):
        self.placement = placement
        self.strategies: list[Any] = []

    def adopt(self, strategy: Any) -> Any:
        """The placement of a strategy that was just made."""
        self.strategies.append(strategy)
        return self.placement


_current: list[Planning] = []


def current() -> Planning | None:
    """The plan in the making, if any."""
    return _current[-1] if _current else None


class planning:  # noqa: N801 - a context manager, used like a function
    """Within the ``with`` block, programs are planned instead of run."""

    def __init__(self, plan: Planning):
        self._plan = plan

    def __enter__(self) -> Planning:
        _current.append(self._plan)
        return self._plan

    def __exit__(self, *exc_info: object) -> None:
        _current.pop()
