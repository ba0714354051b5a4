"""A source whose elements are datasets: the shards of a saved dataset."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..graph._blocks import Boxed, Column
from ..graph._graph import NOT_COMPARED, Node
from ..graph._structure import DatasetSpec
from ..sources._sources import Counted
from .batches._window import MakeDataset


@dataclasses.dataclass(frozen=True, eq=False)
class Shards(Counted):
    """One dataset for each shard."""

    make_dataset: MakeDataset = dataclasses.field(default=id, metadata=NOT_COMPARED)
    shards: tuple[Node, ...] = ()
    folder: str = ""

    @property
    def label(self) -> str:
        return f"load({self.folder}, {[each.cardinality for each in self.shards]} elements)"

    @property
    def spec(self) -> Any:
        return DatasetSpec(self.shards[0].spec)

    def columns(self, start: int, stop: int) -> list[Column]:
        return [Boxed.of([self.make_dataset(shard) for shard in self.shards[start:stop]])]


def all_shards(shards: Sequence[Node], folder: str, make_dataset: MakeDataset) -> Node:
    """Return the source of the shards as datasets."""
    return Shards(size=len(shards), make_dataset=make_dataset, shards=tuple(shards), folder=folder)
