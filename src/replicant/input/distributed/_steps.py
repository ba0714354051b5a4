"""The steps of a pass, as one worker sees them: what it has for each, and after which the pass is over."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from ...errors import DatasetError
from ..graph._background import END

# This worker's result for a step, `END` if it has none; and what all workers have reported about the step, if they have.
Step: TypeAlias = tuple[Any, Sequence[Any] | None]


class Steps(Protocol):
    """The steps of a pass. `OwnSteps`, `CountedSteps` and `AgreedSteps` differ in who decides on its end."""

    def next(self, step: int) -> Step | None:
        """Return what this worker has for a step, or None if the pass is over before it."""
        ...


class OwnSteps:
    """All workers end where this one does.

    Args:
        take: Returns this worker's next result, or `END`.
    """

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take

    def next(self, step: int) -> Step | None:
        """Return the next result, or None at the end."""
        del step
        item = self._take()
        return None if item is END else (item, None)


class CountedSteps:
    """The workers have agreed on the number of steps before the first one.

    Args:
        before: Returns what this worker has for a step before the end, if anything.
        take: Returns this worker's next result behind the end, which should be `END`.
        num_steps: The number of steps.
    """

    def __init__(self, before: Callable[[int], Step | None], take: Callable[[], Any], num_steps: int) -> None:
        self._before, self._take, self._num_steps = before, take, num_steps
        self._has_more: bool | None = None  # not known before the end

    def next(self, step: int) -> Step | None:
        """Return what this worker has for a step, or None at the end.

        Raises:
            DatasetError: If this worker has results for more steps than it has promised.
        """
        if step < self._num_steps:
            return self._before(step)
        if self._has_more is None:
            self._has_more = self._take() is not END
        if self._has_more:
            raise DatasetError(
                f"The dataset has more than the {self._num_steps} steps that its cardinality promised to the other workers. "
                "It may have changed since it was built: build it again."
            )
        return None
