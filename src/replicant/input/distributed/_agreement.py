"""Agreement of the workers on a pass: where it begins, and where it ends.

It begins where the chief's does. If the workers have different numbers of steps, it ends with the longest; workers that have
reached their end continue without rows.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ...errors import DatasetError
from ..graph._fingerprint import of_random_states
from ..graph._graph import INFINITE, UNKNOWN, Node, State, known, nodes
from ..sources._foreign import Foreign
from ..sources._generator import Generator

# Sends this worker's value, which JSON can hold, to every worker, and returns the values of all workers in order. All workers
# call it equally often, on the thread that asks for the elements.
ExchangeFn = Callable[[Any], Sequence[Any]]

_T = TypeVar("_T")


def meet(
    exchange: ExchangeFn, what: str, make: Callable[[], _T], tell: Callable[[_T], dict[str, Any]]
) -> tuple[_T, Sequence[dict[str, Any]]]:
    """Return what this worker made, and what all report. A worker that fails raises its own error, and the others name it.

    Raises:
        DatasetError: If another worker failed.
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
            raise DatasetError(
                f"Worker {worker} could not {what}, so this worker cannot continue either. It says: {answer['failed']}"
            )
    return made, answers


def agreed_position(exchange: ExchangeFn, sources: Sequence[Node], begin: Callable[[], tuple[int, State]]) -> State:
    """Return the position where all workers begin to read, which is the chief's. This takes one exchange.

    Args:
        exchange: Exchanges values with the other workers.
        sources: The graphs that all workers read.
        begin: Returns the number of this worker's next step, and its position.

    Raises:
        DatasetError: If the workers are at different steps, or the random generators that decide what they read differ.
    """

    def tell(place: tuple[int, State]) -> dict[str, Any]:
        return {"step": place[0], "position": place[1], "random": _random_states(sources)}

    _, answers = meet(exchange, "begin a pass over its dataset", begin, tell)
    steps = [answer["step"] for answer in answers]
    if len(set(steps)) > 1:
        listing = ", ".join(f"worker {worker} before step {step}" for worker, step in enumerate(steps))
        raise DatasetError(
            f"The workers are at different positions in the dataset: {listing}. Restore the same state on all of them, or on none."
        )
    first = answers[0]["random"]
    for worker, answer in enumerate(answers):
        for name, state in answer["random"].items():
            if first.get(name, state) != state:
                raise DatasetError(
                    f"{name} draws from a random generator whose state on worker {worker} differs from that on worker 0. The "
                    "workers would read different elements: some twice, others never. Create the generator inside the function, "
                    "with a seed: `rng = np.random.default_rng(seed)`. Or make each worker's share in "
                    "`strategy.distribute_datasets_from_function(fn)`."
                )
    return answers[0]["position"]


def _random_states(sources: Sequence[Node]) -> dict[str, str]:
    """The random states that generators and datasets of other libraries see in this process."""
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
    """Return the number of steps of the longest worker, INFINITE (-1) if one is infinite, else UNKNOWN (-2) if one is unknown.

    >>> agreed_steps([3, 5, 0]), agreed_steps([3, -2]), agreed_steps([-1, -2])
    (5, -2, -1)
    """
    if INFINITE in steps_of_workers:
        return INFINITE
    return UNKNOWN if UNKNOWN in steps_of_workers else max(steps_of_workers)


def agreed_end(num_steps: int, exchange: ExchangeFn) -> int:
    """Return after how many steps the workers end, of which this one has `num_steps`. This takes one exchange.

    Returns:
        The number of steps; INFINITE (-1) if no worker has an end, UNKNOWN (-2) if the workers have to ask each other in each step.
    """
    steps_of_workers = exchange(num_steps)
    if all(steps == INFINITE for steps in steps_of_workers):
        return INFINITE
    total = agreed_steps(steps_of_workers)
    return total if known(total) else UNKNOWN
