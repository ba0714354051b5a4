"""Leaves elements out at random, so that classes become as frequent as they should be."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ....errors import ArgumentError, ElementError
from ...graph._blocks import Block
from ...graph._graph import UNKNOWN, Cursor, OneInput, State, Through, sample
from ...graph._structure import spec_of
from ..elements._map import call, name_of
from ..order._shuffle import Drawing
from ._sample_from import Draws

_SMOOTHING = 10  # elements of each class that are taken to have been seen already, as in TensorFlow


def checked_distribution(name: str, values: Any) -> tuple[float, ...]:
    """Return the frequencies of classes.

    Raises:
        ArgumentError: If they are not numbers of at least 0, one for each class, that are not all 0.
    """
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        numbers = np.zeros(())
    if numbers.ndim != 1 or not np.all(numbers >= 0) or not 0 < numbers.sum() < np.inf:
        raise ArgumentError(
            f"rejection_resample: {name} must be one frequency of at least 0 per class, not all of them 0. Received: {values!r}."
        )
    return tuple(float(number) for number in numbers)


@dataclasses.dataclass(frozen=True, eq=False)
class Resample(OneInput, Drawing):
    """Pairs of the class and the element. ``initial`` are the frequencies of the classes in the input; None: they are counted."""

    class_func: Callable[..., Any] = int
    target: tuple[float, ...] = ()
    initial: tuple[float, ...] | None = None

    @property
    def label(self) -> str:
        initial = "" if self.initial is None else f", initial_dist={list(self.initial)}"
        seed = "" if self.seed is None else f", seed={self.seed}"
        return f"rejection_resample({name_of(self.class_func)}, {list(self.target)}{initial}{seed})"

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        element = sample(self.input)
        return None if element is None else (spec_of(self.class_of(element)), self.input.spec)

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        return size if size == 0 or self.keeps_all else UNKNOWN

    @property
    def keeps_all(self) -> bool:
        """Whether the frequencies are those that are wanted, so that nothing is left out."""
        if self.initial is None or 0.0 in self.initial:
            return False
        return len({wanted / there for wanted, there in zip(self.target, self.initial, strict=True)}) == 1

    def class_of(self, element: Any) -> Any:
        """Return the class of an element.

        Raises:
            ElementError: If it is not the number of a class.
        """
        value = call(self.class_func, element)
        number = np.asarray(value)
        if number.ndim or number.dtype.kind not in "iu" or not 0 <= number < len(self.target):
            raise ElementError(
                f"rejection_resample: {name_of(self.class_func)} must return a whole number from 0 to {len(self.target) - 1}, as "
                f"target_dist has {len(self.target)} classes. Received: {value!r}."
            )
        return number[()] if hasattr(value, "dtype") else np.int32(number)

    def open(self, state: State | None = None) -> Cursor:
        cursor = ResampleCursor(self.input.open(state and state["source"]), self, self.draws(state))
        if state:
            cursor.go_to(state["drawn"], state["seen"])
        return cursor


class ResampleCursor(Through):
    """Draws once per element. Where the frequencies are not known, it counts classes."""

    def __init__(self, source: Cursor, node: Resample, order: tuple[int, int, int]) -> None:
        super().__init__(source)
        self.node = node
        self.entropy, self.iteration, self.pass_ = order
        self.go_to(0, [_SMOOTHING] * len(node.target))

    def go_to(self, drawn: int, seen: list[int]) -> None:
        """Continue after this many draws, with these numbers of elements of each class."""
        self.draws = Draws(self.entropy, self.iteration, self.pass_, drawn)
        self.seen = [*seen]

    def _is_kept(self, number: int) -> bool:
        node = self.node
        self.seen[number] += 1
        initial = np.asarray(self.seen if node.initial is None else node.initial, np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            wanted = np.where(np.asarray(node.target) > 0, np.asarray(node.target) / initial, 0.0)
        highest = wanted[np.isfinite(wanted)].max(initial=0.0)
        chance = 1.0 if wanted[number] >= highest and wanted[number] > 0 else wanted[number] / highest if highest else 0.0
        return self.draws.next() < chance

    def pull(self, limit: int) -> Block | None:
        while (block := self.source.pull(1)) is not None:
            element = next(block.elements())
            its_class = self.node.class_of(element)
            if self._is_kept(int(its_class)):
                return Block.one((its_class, element))
        return None

    def reset(self) -> None:
        self.source.reset()
        self.pass_ += self.node.reshuffle
        self.go_to(0, [_SMOOTHING] * len(self.node.target))

    def state(self) -> State:
        order = {"entropy": self.entropy, "iteration": self.iteration, "pass": self.pass_}
        return {**order, "drawn": self.draws.drawn, "seen": [*self.seen], "source": self.source.state()}
