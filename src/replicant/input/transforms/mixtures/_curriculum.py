"""Weights of a mixture that depend on the number of the draw."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ....errors import ArgumentError, ArgumentTypeError, ElementError
from ..elements._map import name_of

_METHOD = "sample_from_datasets"
_RULE = "numbers of at least 0 and not all 0"


@dataclasses.dataclass(frozen=True)
class WeightTable:
    """Weights from each of these draws on."""

    stages: tuple[tuple[int, tuple[float, ...]], ...]

    def __str__(self) -> str:
        return str([(first, list(weights)) for first, weights in self.stages])

    def at(self, step: int) -> np.ndarray:
        """Return the weights of draw ``step``."""
        return np.array(next(weights for first, weights in reversed(self.stages) if first <= step))

    def after(self, step: int) -> int | None:
        """Return the first draw of the next stage, or None in the last one."""
        return next((first for first, _ in self.stages if first > step), None)


@dataclasses.dataclass(frozen=True)
class WeightFunction:
    """Weights that a function of the draw's number returns."""

    fn: Callable[[int], Any]
    count: int

    def __str__(self) -> str:
        return name_of(self.fn)

    def at(self, step: int) -> np.ndarray:
        """Return the weights of draw ``step``.

        Raises:
            ElementError: If they are not such weights.
        """
        return checked(self.fn(step), self.count, f"{name_of(self.fn)}({step})")


Curriculum = WeightTable | WeightFunction


def checked(value: Any, count: int, what: str) -> np.ndarray:
    """Return weights for ``count`` datasets. ``what`` gave them.

    Raises:
        ElementError: If they are not so many, negative, not finite, or all 0.
    """
    weights = numbers(value)
    if weights is None or not _are_weights(weights, count):
        raise ElementError(
            f"{_METHOD}: {what} must hold {count} weights, one for each dataset, of at least 0 and not all 0. Received: {value!r}."
        )
    return weights


def numbers(value: Any) -> np.ndarray | None:
    """Return the value as a vector of float64, or None if it cannot be one."""
    try:
        return np.array(value, np.float64).reshape(-1)
    except (TypeError, ValueError):
        return None


def _are_weights(weights: np.ndarray, count: int) -> bool:
    return len(weights) == count and bool(np.all((weights >= 0) & (weights < np.inf)) and weights.any())


def is_table(value: Any) -> bool:
    """Return whether these are stages, not weights: pairs, of which the second is a sequence."""
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_stage, value))


def _is_stage(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and np.ndim(value[0]) == 0 and not np.isscalar(value[1])


def weight_table(stages: Any, count: int) -> WeightTable:
    """Return the table of these stages.

    Raises:
        ArgumentTypeError: If a stage does not begin at a whole number.
        ArgumentError: If the first does not begin at 0, one does not begin after the one before it, or its weights are invalid.
    """
    made: list[tuple[int, tuple[float, ...]]] = []
    for first, value in stages:
        if isinstance(first, bool) or not isinstance(first, int | np.integer):
            raise ArgumentTypeError(f"{_METHOD}: each stage of the weights begins at a whole number of draws. Received: {first!r}.")
        weights = numbers(value)
        if weights is None or not _are_weights(weights, count):
            raise ArgumentError(
                f"{_METHOD}: the weights of the stage at draw {first} must be {count} {_RULE}, one for each dataset. "
                f"Received: {value!r}."
            )
        made.append((int(first), tuple(weights.tolist())))
    begins = [first for first, _ in made]
    if begins[0] != 0 or any(b <= a for a, b in itertools.pairwise(begins)):
        raise ArgumentError(
            f"{_METHOD}: the stages of the weights must begin at draw 0 and at growing numbers after it. They begin at {begins}."
        )
    return WeightTable(tuple(made))
