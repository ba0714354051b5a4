"""What a plan reads instead of data: batches of zeros in the same shapes, which take no memory."""

import dataclasses
import math
import sys
from typing import Any

from ..replicas._planning import BIG, Planning, zeros
from ._dataset import Dataset, facts_of_pipeline
from .graph._blocks import Column, Dense
from .graph._graph import NOT_COMPARED, known
from .graph._structure import STRING, TensorSpec, flatten, map_leaves
from .sources._sources import Counted


@dataclasses.dataclass(frozen=True, eq=False)
class Zeros(Counted):
    """Elements of zeros that all have the same spec. `count` is the cardinality."""

    spec: Any = dataclasses.field(default=None, metadata=NOT_COMPARED)
    count: int = 0

    @property
    def label(self) -> str:
        return f"zeros({', '.join(f'{leaf.dtype}{list(leaf.shape)}' for leaf in flatten(self.spec)[0])})"

    @property
    def cardinality(self) -> int:
        return self.count

    def columns(self, start: int, stop: int) -> list[Column]:
        return [Dense(zeros((stop - start, *leaf.shape), leaf.dtype)) for leaf in flatten(self.spec)[0]]


def planned(dataset: Dataset, plan: Planning) -> Dataset:
    """The dataset as a plan in the making reads it."""
    plan.inputs.append(dataset.explain)
    return shapes_only(dataset)


def shapes_only(dataset: Dataset) -> Dataset:
    """The batches without their data, if they are large and their shapes are known."""
    if dataset.node.spec is None:
        return dataset
    size, last = facts_of_pipeline(dataset).batch_sizes
    count = dataset.cardinality()
    rows = last if count == 1 and last else size
    leaves = flatten(dataset.node.spec)[0]
    if rows is None or not leaves or any(leaf.dtype == STRING or None in leaf.shape[1:] or not leaf.shape for leaf in leaves):
        return dataset
    if sum(rows * math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in leaves) < BIG:
        return dataset
    spec = map_leaves(lambda leaf: TensorSpec((rows, *leaf.shape[1:]), leaf.dtype), dataset.node.spec)
    return Dataset(Zeros(size=count if known(count) else sys.maxsize, spec=spec, count=count), dataset.options())
