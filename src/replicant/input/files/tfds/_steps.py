"""Features that are datasets themselves: the steps of one example, each as if it were an example."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...graph._blocks import Column
from ...sources._sources import Numbered
from ..records._example_values import Stored
from ._columns import WrongExample, column_of
from ._decode import decoded
from ._features import Feature, Steps, in_steps, leaves_of, spec_of

# What makes a dataset of a node.
MakeDataset = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class StepsOfExample(Numbered):
    """The steps of one example. What is encoded is decoded when they are read."""

    columns_of_all: tuple[Column, ...] = ()
    features: Any = None
    wrong: Callable[[WrongExample], Exception] = Exception

    @property
    def label(self) -> str:
        return f"{self.size} steps"

    @property
    def spec(self) -> Any:
        return spec_of(self.features)

    def chosen(self, numbers: np.ndarray) -> list[Column]:
        chosen = [column.with_refs(column.refs[numbers]) for column in self.columns_of_all]
        try:
            return [decoded(each, column) for each, column in zip(leaves_of(self.features), chosen, strict=True)]
        except WrongExample as error:
            raise self.wrong(error) from error


def steps_of(feature: Steps, stored: Mapping[str, Stored], row: int, wrong: Callable[[WrongExample], Exception]) -> StepsOfExample:
    """Return the steps of one example. ``wrong`` makes the error of a step that cannot be decoded.

    Raises:
        WrongExample: If features have different numbers of steps, or a step has other values than its features say.
    """
    count, columns = feature.length, []
    for each in leaves_of(feature.features):
        own = {name: _row(stored[name], row) for name in in_steps(each, feature.length).stored}
        try:
            found, values = _of_steps(each, own, feature.length)
            columns.append(column_of(each, values, found))
        except WrongExample as error:
            error.row = row
            raise
        if count is not None and found != count:
            raise WrongExample(row, each.path, f"has {found} steps instead of {count}")
        count = found
    return StepsOfExample(size=count or 0, columns_of_all=tuple(columns), features=feature.features, wrong=wrong)


def _row(part: Stored, row: int) -> Stored:
    """The values of one example."""
    begin = int(part.counts[:row].sum())
    return Stored(part.flat[begin : begin + part.counts[row]], part.counts[row : row + 1], part.there[row : row + 1])


def _of_steps(feature: Feature, own: Mapping[str, Stored], length: int | None) -> tuple[int, dict[str, Stored]]:
    """The number of steps of one example, and the values of a feature, as if each step were an example."""
    found: dict[str, Stored] = {}
    count = 0
    for name, unit in _units(feature).items():
        if feature.lengths:
            per_step = _levels(feature, own, name, found)
            values = own[f"{name}/ragged_flat_values"].flat
        else:
            values = own[name].flat
            per_step = np.ones(_count(feature, len(values), unit, length), np.int64)
            unit = unit if unit is not None else len(values) // max(len(per_step), 1)  # noqa: PLW2901 - the free size is the same in all
        if int(per_step.sum()) * (unit or 0) != len(values):
            raise WrongExample(0, feature.path, f"has {len(values)} values, which its {len(per_step)} steps do not share")
        key = f"{name}/ragged_flat_values" if feature.is_ragged else name
        found[key], count = _stored(values, per_step * (unit or 0)), len(per_step)
    return count, found


def _units(feature: Feature) -> dict[str, int | None]:
    """How many values an item has, by the names under which they are; None if that is not known."""
    if feature.has_own_shape:
        return {f"{feature.path}/value": 1, f"{feature.path}/shape": len(feature.item)}
    if feature.encoding:
        return {feature.path: 1}
    return {feature.path: None if None in feature.item else math.prod(size or 0 for size in feature.item)}


def _count(feature: Feature, size: int, unit: int | None, length: int | None) -> int:
    """The number of steps that have so many values together."""
    if length is not None:
        return length
    if not unit or size % unit:
        raise WrongExample(0, feature.path, f"has {size} values in all steps, and each step needs {unit}")
    return size // unit


def _levels(feature: Feature, own: Mapping[str, Stored], name: str, found: dict[str, Stored]) -> np.ndarray:
    """How many items each step has. The lengths of lists in lists are put into ``found``."""
    levels = [own[f"{name}/ragged_row_lengths_{depth}"].flat for depth in range(len(feature.lengths))]
    per_step = levels[0]
    for depth, lengths in enumerate(levels):
        if (lengths < 0).any() or (depth and per_step.sum() != len(lengths)):
            raise WrongExample(0, feature.path, f"has lists of the lengths {lengths[:20].tolist()}")
        if depth:
            found[f"{name}/ragged_row_lengths_{depth - 1}"] = _stored(lengths, per_step)
            sums = np.append(0, np.cumsum(lengths))
            ends = np.append(0, np.cumsum(per_step))
            per_step = sums[ends[1:]] - sums[ends[:-1]]
    return per_step


def _stored(values: np.ndarray, counts: np.ndarray) -> Stored:
    return Stored(values, counts, np.ones(len(counts), bool))
