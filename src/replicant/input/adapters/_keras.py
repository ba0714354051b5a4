"""keras.utils.PyDataset. It is recognized by its class name, so Keras is not imported here."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ..graph._graph import INFINITE
from ._batches import Batches, Passes


@dataclasses.dataclass(frozen=True, eq=False)
class PyDatasetBatches(Batches):
    """Batches numbered from 0. The dataset's epoch hooks run where a pass begins and ends.

    Its threads and processes (``workers``) are not used: batches are read ahead on one thread.
    """

    dataset: Any = None

    @classmethod
    def of(cls, iterable: Any) -> "PyDatasetBatches":
        """Return the batches of this PyDataset."""
        return cls(passes=Passes(_Numbered(iterable), "keras PyDataset"), dataset=iterable)

    @property
    def same_everywhere(self) -> bool:
        return True

    @property
    def drawn_from(self) -> object:
        return self.dataset

    @property
    def cardinality(self) -> int:
        size = self.dataset.num_batches
        return INFINITE if size is None else int(size)


class _Numbered:
    """Iterates over a PyDataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        dataset, number = self.dataset, 0
        dataset.on_epoch_begin()
        while dataset.num_batches is None or number < dataset.num_batches:
            yield dataset[number]
            number += 1
        dataset.on_epoch_end()
