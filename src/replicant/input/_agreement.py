"""When a pass ends if workers have different numbers of steps: with the longest. Those at their end go on without rows."""

from collections.abc import Callable, Sequence

from replicant.errors import DatasetError

from ._graph import INFINITE, UNKNOWN, known

# Gives every worker this worker's number, and returns those of all workers in their order. All workers call it equally
# often, on the thread that asks for the elements.
Exchange = Callable[[int], Sequence[int]]


def agreed_steps(steps_of_workers: Sequence[int]) -> int:
    """Number of steps of all workers together: that of the longest; INFINITE (-1) or UNKNOWN (-2) as soon as one is.

    >>> agreed_steps([3, 5, 0]), agreed_steps([3, -2]), agreed_steps([-1, -2])
    (5, -2, -1)
    """
    if INFINITE in steps_of_workers:
        return INFINITE
    return UNKNOWN if UNKNOWN in steps_of_workers else max(steps_of_workers)


_FAILED = -1


class End:
    """Here: where a worker ends, all do."""

    def reached(self, step: int, has_rows: bool) -> bool:
        """Whether the pass is over before this step, for which this worker has rows or not."""
        return not has_rows

    def fail(self) -> None:
        """This worker cannot read its input. Let the others know, where they ask."""
        return


class KnownEnd(End):
    """After a number of steps that was agreed before the first of them."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def reached(self, step: int, has_rows: bool) -> bool:
        if has_rows and step >= self.num_steps:
            raise DatasetError(
                f"The dataset has more than the {self.num_steps} steps that its cardinality promised to the other workers. "
                "It may have changed since it was made: make it again."
            )
        return step >= self.num_steps


class AskedEnd(End):
    """When all workers say that they have no more: one exchange per step."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def reached(self, step: int, has_rows: bool) -> bool:
        answers = self.exchange(int(has_rows))
        if _FAILED in answers:
            raise DatasetError(
                f"Worker {list(answers).index(_FAILED)} could not read its input at step {step}, so this worker cannot go on "
                "either. That worker's own message says why."
            )
        return not any(answers)

    def fail(self) -> None:
        self.exchange(_FAILED)


def agree_on_end(num_steps: int, exchange: Exchange) -> End:
    """The end of a pass in which this worker has so many steps. One exchange here, and none later if all know theirs."""
    steps_of_workers = exchange(num_steps)
    if all(steps == INFINITE for steps in steps_of_workers):
        return End()
    total = agreed_steps(steps_of_workers)
    return KnownEnd(total) if known(total) else AskedEnd(exchange)
