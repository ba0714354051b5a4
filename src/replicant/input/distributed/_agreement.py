"""What workers tell each other about a pass: where it begins, and where it ends.

It begins where the chief's does. If they have different numbers of steps it ends with the longest; those at their end go on
without rows.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from replicant.errors import DatasetError

from ..graph._fingerprint import of_random_states
from ..graph._graph import INFINITE, UNKNOWN, Node, State, known, nodes
from ..sources._foreign import Foreign
from ..sources._generator import Generator

# Gives every worker this worker's value, which JSON can hold, and returns those of all workers in their order. All workers
# call it equally often, on the thread that asks for the elements.
ExchangeFn = Callable[[Any], Sequence[Any]]

_T = TypeVar("_T")


def meet(
    exchange: ExchangeFn, what: str, make: Callable[[], _T], tell: Callable[[_T], dict[str, Any]]
) -> tuple[_T, Sequence[dict[str, Any]]]:
    """What this worker made, and what all tell of theirs. One that fails raises its own error, and the others one that names it.

    Raises:
        DatasetError: another worker failed.
    """
    try:
        made = make()
        told = tell(made)
    except Exception as error:
        exchange({"failed": f"{type(error).__name__}: {error}"})
        raise
    answers = exchange(told)
    for worker, answer in enumerate(answers):
        if "failed" in answer:
            raise DatasetError(f"Worker {worker} could not {what}, so this worker cannot go on either. It says: {answer['failed']}")
    return made, answers


def agreed_position(exchange: ExchangeFn, sources: Sequence[Node], begin: Callable[[], tuple[int, State]]) -> State:
    """Where all workers begin to read, which is where the chief does: one exchange.

    Args:
        exchange: with the other workers.
        sources: the graphs that all workers read.
        begin: gives the step before which this worker stands, and its position.

    Raises:
        DatasetError: the workers stand before different steps, or random generators that decide what they read differ.
    """

    def tell(place: tuple[int, State]) -> dict[str, Any]:
        return {"step": place[0], "position": place[1], "random": _random_states(sources)}

    _, answers = meet(exchange, "begin a pass over its dataset", begin, tell)
    steps = [answer["step"] for answer in answers]
    if len(set(steps)) > 1:
        listing = ", ".join(f"worker {worker} before step {step}" for worker, step in enumerate(steps))
        raise DatasetError(
            f"The workers stand at different positions in the dataset: {listing}. Restore the same state on all of them, or on "
            "none."
        )
    first = answers[0]["random"]
    for worker, answer in enumerate(answers):
        for name, state in answer["random"].items():
            if first.get(name, state) != state:
                raise DatasetError(
                    f"{name} draws from a random generator whose state on worker {worker} is not that on worker 0: the workers "
                    "would read different elements: some twice, others never. Make the generator with a seed inside of "
                    "the function, `rng = np.random.default_rng(seed)`; or make each worker's share in "
                    "`strategy.distribute_datasets_from_function(fn)`."
                )
    return answers[0]["position"]


def _random_states(sources: Sequence[Node]) -> dict[str, str]:
    """Those that generators and datasets of other libraries see in this process."""
    found: dict[str, str] = {}
    for number, node in enumerate(each for source in sources for each in nodes(source)):
        if isinstance(node, Generator):
            state = of_random_states((node.make, node.args))
        else:
            state = of_random_states(node.drawn_from) if isinstance(node, Foreign) else None
        if state is not None:
            found[f"{node.label}, part {number} of the pipeline,"] = state
    return found


def agreed_steps(steps_of_workers: Sequence[int]) -> int:
    """Number of steps of all workers together: that of the longest; INFINITE (-1) or UNKNOWN (-2) as soon as one is.

    >>> agreed_steps([3, 5, 0]), agreed_steps([3, -2]), agreed_steps([-1, -2])
    (5, -2, -1)
    """
    if INFINITE in steps_of_workers:
        return INFINITE
    return UNKNOWN if UNKNOWN in steps_of_workers else max(steps_of_workers)


class End:
    """Here: where a worker ends, all do."""

    is_open = False  # whether the workers must ask each other on the way

    def is_at(self, step: int) -> bool:
        """Whether it is known that the pass is over before this step."""
        del step
        return False

    def reached(self, step: int, has_rows: bool) -> bool:
        """Whether the pass is over before this step, for which this worker has rows or not."""
        return not has_rows


class KnownEnd(End):
    """After a number of steps that was agreed before the first of them."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def is_at(self, step: int) -> bool:
        return step >= self.num_steps

    def reached(self, step: int, has_rows: bool) -> bool:
        if has_rows and step >= self.num_steps:
            raise DatasetError(
                f"The dataset has more than the {self.num_steps} steps that its cardinality promised to the other workers. "
                "It may have changed since it was made: make it again."
            )
        return step >= self.num_steps


class OpenEnd(End):
    """When all workers say that they have no more; see `AgreedSteps`."""

    is_open = True


def agree_on_end(num_steps: int, exchange: ExchangeFn) -> End:
    """The end of a pass in which this worker has so many steps. One exchange here, and none later if all know theirs."""
    steps_of_workers = exchange(num_steps)
    if all(steps == INFINITE for steps in steps_of_workers):
        return End()
    total = agreed_steps(steps_of_workers)
    return KnownEnd(total) if known(total) else OpenEnd()
