"""Elements of several datasets, one at a time: of the one that another dataset names, or of one that is drawn."""

import dataclasses
from typing import Any

import numpy as np

from ....errors import ElementError
from ...graph._blocks import Block, concatenate
from ...graph._graph import INFINITE, UNKNOWN, Cursor, Node, State, known
from ..order._shuffle import Drawing
from ._combine import Concatenate, Several
from ._curriculum import Curriculum, WeightTable, checked

_CHUNK = 256  # random numbers that are drawn at once
_MOST_FRUITLESS = 10_000  # draws in a row that may find only datasets that have ended
_MOST_ENDED = 1_000_000  # choices in a row that may name only datasets that have ended


@dataclasses.dataclass(frozen=True, eq=False)
class Choose(Node):
    """The first input says which of the others gives the next element."""

    stop_on_empty: bool = True

    @property
    def choices(self) -> tuple[Node, ...]:
        """The inputs to choose from."""
        return self.inputs[1:]

    @property
    def label(self) -> str:
        return f"choose_from_datasets(stop_on_empty_dataset={self.stop_on_empty})"

    @property
    def spec(self) -> Any:
        return common_spec(self.choices)

    @property
    def cardinality(self) -> int:
        return directed_cardinality(self.choices, self.stop_on_empty)

    def open(self, state: State | None = None) -> Cursor:
        return ChooseCursor(opened(self.inputs, state), self.stop_on_empty, state)


@dataclasses.dataclass(frozen=True, eq=False)
class Sample(Drawing):
    """The next element comes from an input that is drawn with these weights. None: the first input yields the weights."""

    weights: tuple[float, ...] | Curriculum | None = None
    stop_on_empty: bool = False
    numbers: tuple[int, ...] = ()  # of the choices, among the datasets that were given: those of weight 0 are left out

    @property
    def choices(self) -> tuple[Node, ...]:
        """The inputs to choose from."""
        return self.inputs if self.weights is not None else self.inputs[1:]

    @property
    def label(self) -> str:
        weights = "dataset" if self.weights is None else list(self.weights) if isinstance(self.weights, tuple) else self.weights
        seed = "" if self.seed is None else f", seed={self.seed}"
        again = ", rerandomize_each_iteration=True" if self.reshuffle else ""
        return f"sample_from_datasets(weights={weights}{seed}, stop_on_empty_dataset={self.stop_on_empty}{again})"

    @property
    def spec(self) -> Any:
        return common_spec(self.choices)

    @property
    def cardinality(self) -> int:
        if not self.stop_on_empty and any(each.cardinality == INFINITE for each in self._drawn_to_the_end):
            return INFINITE  # its weight is not 0, so it goes on when the others have ended
        return directed_cardinality(self.choices, self.stop_on_empty)

    @property
    def _drawn_to_the_end(self) -> tuple[Node, ...]:
        """The inputs of which it is known that draws without end have weights for them."""
        if isinstance(self.weights, WeightTable):
            last = self.weights.stages[-1][1]
            return tuple(each for each, weight in zip(self.choices, last, strict=True) if weight)
        return self.choices if isinstance(self.weights, tuple) else ()

    def open(self, state: State | None = None) -> Cursor:
        sources = opened(self.inputs, state)
        return SampleCursor(self, sources, self.draws(state), state)


class DirectedCursor(Several):
    """Takes one element after the other. Inputs that have ended are passed over, or end everything."""

    def __init__(self, sources: list[Cursor], choices: list[Cursor], stop_on_empty: bool, state: State | None) -> None:
        super().__init__(sources)
        self.choices, self.stop_on_empty = choices, stop_on_empty
        self.ended: set[int] = set(state["ended"] if state else ())
        given = state.get("given_by_source") if state else None  # which older positions lack
        self.given = [*given] if given else [0] * len(choices)  # in all passes

    def next_choice(self) -> int | None:
        """Return the number of the input that comes next, or None at the end."""
        raise NotImplementedError

    def pull(self, limit: int) -> Block | None:
        blocks: list[Block] = []
        while len(blocks) < limit and (block := self._one()) is not None:
            blocks.append(block)
        return concatenate(blocks) if blocks else None

    def _one(self) -> Block | None:
        while len(self.ended) < len(self.choices) and not (self.stop_on_empty and self.ended):
            choice = self.next_choice()
            if choice is None:
                self.ended = set(range(len(self.choices)))
            elif choice not in self.ended:
                block = self.choices[choice].pull(1)
                if block is not None:
                    self.given[choice] += 1
                    return block
                self.ended.add(choice)
        return None

    def reset(self) -> None:
        self.ended = set()
        super().reset()

    def state(self) -> State:
        passes = [each.num_passes for each in self.choices]
        return {"ended": sorted(self.ended), "given_by_source": [*self.given], "passes_by_source": passes, **super().state()}


class ChooseCursor(DirectedCursor):
    """Asks the first input."""

    def __init__(self, sources: list[Cursor], stop_on_empty: bool, state: State | None) -> None:
        super().__init__(sources, sources[1:], stop_on_empty, state)

    def next_choice(self) -> int | None:
        for _ in range(_MOST_ENDED):
            found = self.sources[0].pull_one()
            number = None if found is None else self._checked(found)
            if number not in self.ended:
                return number
        raise ElementError(
            f"choose_from_datasets: {_MOST_ENDED:,} choices in a row name only datasets that have ended (numbers "
            f"{', '.join(map(str, sorted(self.ended)))}). Repeat these datasets, choose others, let choice_dataset end, or use "
            "stop_on_empty_dataset=True."
        )

    def _checked(self, found: tuple[Any]) -> int:
        number = np.asarray(found[0])
        if number.ndim or number.dtype.kind not in "iu" or not 0 <= number < len(self.choices):
            raise ElementError(
                f"choose_from_datasets: the elements of choice_dataset must be whole numbers from 0 to {len(self.choices) - 1}, "
                f"one for each of the {len(self.choices)} datasets. Received: {found[0]!r}."
            )
        return int(number)


class SampleCursor(DirectedCursor):
    """Draws. Each draw takes one step of the generator, so a number of draws is a position."""

    def __init__(self, node: Sample, sources: list[Cursor], order: tuple[int, int, int], state: State | None) -> None:
        super().__init__(sources, sources if node.weights is not None else sources[1:], node.stop_on_empty, state)
        self.node = node
        self.entropy, self.iteration, self.pass_ = order
        self._begin(state["drawn"] if state else 0)

    def _begin(self, drawn: int) -> None:
        self.numbers = Draws(self.entropy, self.iteration, self.pass_, drawn)

    def next_choice(self) -> int | None:
        for _ in range(_MOST_FRUITLESS):
            weights = self._weights()
            if weights is None:
                return None
            if not self.stop_on_empty:
                weights[list(self.ended)] = 0  # or a rare one, once it is alone, would take many draws per element
            if weights.any():
                return draw(weights, self.numbers.next())
            if not self._pass_over():
                return None
        raise ElementError(
            f"sample_from_datasets: {_MOST_FRUITLESS:,} draws in a row gave weights of 0 to all datasets but those that have ended "
            f"(numbers {', '.join(map(str, sorted(self.ended)))}). Repeat these datasets, give weights to others, or use "
            "stop_on_empty_dataset=True."
        )

    def _weights(self) -> np.ndarray | None:
        """The weights of the next draw, which may be written to; None at the end of a dataset of weights."""
        weights = self.node.weights
        if isinstance(weights, tuple):
            return np.array(weights)
        if weights is not None:
            return weights.at(self.numbers.drawn)
        found = self.sources[0].pull_one()
        return None if found is None else checked(found[0], len(self.choices), "each element of the dataset of weights")

    def _pass_over(self) -> bool:
        """Leave out a draw for which no dataset is left. Return whether later ones may have other weights."""
        if not isinstance(self.node.weights, WeightTable):
            self.numbers.next()
            return True
        step = self.node.weights.after(self.numbers.drawn)
        if step is not None:
            self._begin(step)
        return step is not None

    def reset(self) -> None:
        super().reset()
        self.pass_ += self.node.reshuffle
        self._begin(0)

    def state(self) -> State:
        order = {"entropy": self.entropy, "iteration": self.iteration, "pass": self.pass_}
        return {**order, "drawn": self.numbers.drawn, **super().state()}


class Draws:
    """Random numbers from 0 to 1, one at a time, from any number on."""

    def __init__(self, entropy: int, iteration: int, pass_: int, drawn: int) -> None:
        bits = np.random.PCG64([entropy, iteration, pass_])
        bits.advance(drawn)
        self._rng = np.random.Generator(bits)
        self._ready: list[float] = []
        self.drawn = drawn

    def next(self) -> float:
        """Return the next number."""
        if not self._ready:
            self._ready = self._rng.random(_CHUNK).tolist()[::-1]
        self.drawn += 1
        return self._ready.pop()


def draw(weights: np.ndarray, number: float) -> int:
    """Return the number of a weight, for a number between 0 and 1.

    >>> [draw(np.array([0.0, 3.0, 1.0]), x) for x in (0.0, 0.7, 0.8)]
    [1, 1, 2]
    """
    # By a power of two, which changes no draw: sums of huge weights would overflow, and those of tiny ones have too few digits.
    sums = np.cumsum(np.ldexp(weights, -int(np.frexp(weights.max())[1])))
    return int(np.searchsorted(sums, number * sums[-1], side="right"))


def opened(inputs: tuple[Node, ...], state: State | None) -> list[Cursor]:
    """Return a cursor for each input."""
    states = state["sources"] if state else [None] * len(inputs)
    return [each.open(its) for each, its in zip(inputs, states, strict=True)]


def common_spec(choices: tuple[Node, ...]) -> Any:
    """Return the spec that fits the elements of all inputs.

    Raises:
        DatasetError: If they differ in structure or dtype.
    """
    if len(choices) == 1:
        return choices[0].spec
    node: Node = choices[0]
    for other in choices[1:]:
        node = Concatenate(inputs=(node, other))
    return node.spec


def directed_cardinality(choices: tuple[Node, ...], stop_on_empty: bool) -> int:
    """Return what can be said about the number of elements before the choices are known."""
    sizes = [each.cardinality for each in choices]
    if all(size == INFINITE for size in sizes):
        return UNKNOWN if stop_on_empty else INFINITE
    if not stop_on_empty and all(map(known, sizes)) and not any(sizes):
        return 0
    return UNKNOWN
