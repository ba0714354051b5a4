"""A source whose elements are datasets: the shards of a saved dataset."""

import dataclasses
from typing import Any

from ..files.saved._saved import Saved
from ..graph._blocks import Boxed, Column
from ..graph._graph import Node
from ..graph._structure import DatasetSpec
from ..sources._sources import Counted
from .batches._window import MakeDataset


@dataclasses.dataclass(frozen=True, eq=False)
class Shards(Counted):
    """One dataset for each shard."""

    make_dataset: MakeDataset = id
    shards: tuple[Saved, ...] = ()

    @property
    def label(self) -> str:
        return f"load({self.shards[0].folder}, {[each.size for each in self.shards]} elements)"

    @property
    def spec(self) -> Any:
        return DatasetSpec(self.shards[0].spec)

    def columns(self, start: int, stop: int) -> list[Column]:
        return [Boxed.of([self.make_dataset(shard) for shard in self.shards[start:stop]])]


def all_shards(shards: list[Saved], make_dataset: MakeDataset) -> Node:
    """Return the source of the shards as datasets."""
    return Shards(size=len(shards), make_dataset=make_dataset, shards=tuple(shards))
