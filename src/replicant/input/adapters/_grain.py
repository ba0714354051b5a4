"""Grain's MapDataset, IterDataset and DataLoader. They are recognized by class names, so Grain is not imported here."""

import base64
import dataclasses
import functools
import sys
from typing import Any

from ...errors import DatasetError
from ..graph._blocks import Block
from ..graph._graph import INFINITE, UNKNOWN, Cursor, State
from ..sources._foreign import Foreign
from ._batches import as_batch, batch_spec
from ._grain_records import shards_of, warn_of_equal_draws, warn_of_records


@dataclasses.dataclass(frozen=True, eq=False)
class GrainMap(Foreign):
    """A MapDataset, whose elements are numbered. A position is the number of the next one."""

    dataset: Any = None

    @classmethod
    def of(cls, dataset: Any) -> "GrainMap":
        """Return the elements of this dataset."""
        warn_of_equal_draws(dataset)
        return cls(dataset=dataset)

    @property
    def kind(self) -> str:
        return "Grain MapDataset"

    @functools.cached_property
    def _spec(self) -> Any:
        block = GrainMapCursor(self, 0).pull(1)
        return None if block is None else batch_spec(next(block.elements()))

    @property
    def spec(self) -> Any:
        return self._spec

    @property
    def cardinality(self) -> int:
        return INFINITE if len(self.dataset) == sys.maxsize else UNKNOWN  # elements may be filtered out

    def open(self, state: State | None = None) -> Cursor:
        return GrainMapCursor(self, state["next"] if state else 0)


class GrainMapCursor(Cursor):
    """Counts up. An element that is None was filtered out."""

    def __init__(self, node: GrainMap, position: int) -> None:
        self.dataset, self.position = node.dataset, position

    def pull(self, limit: int) -> Block | None:
        while self.position < len(self.dataset):
            element = self.dataset[self.position]
            self.position += 1
            if element is not None:
                return Block.one(as_batch(element))
        return None

    def reset(self) -> None:
        self.position = 0

    def state(self) -> State:
        return {"next": self.position}


@dataclasses.dataclass(frozen=True, eq=False)
class GrainIterable(Foreign):
    """An IterDataset or a DataLoader. A position is the state of its own iterator."""

    dataset: Any = None

    @classmethod
    def of(cls, dataset: Any) -> "GrainIterable":
        """Return the elements of this dataset."""
        warn_of_records(dataset)
        warn_of_equal_draws(dataset)
        return cls(dataset=dataset)

    @property
    def same_everywhere(self) -> bool:
        return shards_of(self.dataset) == 1

    @property
    def kind(self) -> str:
        is_loader = any(base.__name__ == "DataLoader" for base in type(self.dataset).__mro__)
        return f"Grain {'DataLoader' if is_loader else 'IterDataset'}"

    @functools.cached_property
    def _spec(self) -> Any:
        element = next(iter(self.dataset), None)
        return None if element is None else batch_spec(as_batch(element))

    @property
    def spec(self) -> Any:
        return self._spec

    def open(self, state: State | None = None) -> Cursor:
        return GrainIterableCursor(self, state and state["iterator"])


class GrainIterableCursor(Cursor):
    """A cursor that begins its pass when the first element is asked for."""

    def __init__(self, node: GrainIterable, state: Any) -> None:
        self.node = node
        self.begin_at = state
        self.iterator: Any = None

    def pull(self, limit: int) -> Block | None:
        if self.iterator is None:
            self.iterator = iter(self.node.dataset)
            if self.begin_at is not None:
                self.iterator.set_state(_decoded(self.begin_at))
        try:
            element = next(self.iterator)
        except StopIteration:
            return None
        return Block.one(as_batch(element))

    def reset(self) -> None:
        self.iterator = self.begin_at = None

    def close(self) -> None:
        self.iterator = None

    def state(self) -> State:
        return {"iterator": self.begin_at if self.iterator is None else _encoded(self.iterator.get_state())}


def _encoded(state: Any) -> Any:
    """A state as JSON can hold it; the bytes of a DataLoader become text."""
    return {"base64": base64.b64encode(state).decode()} if isinstance(state, bytes) else state


def _decoded(state: Any) -> Any:
    if isinstance(state, dict) and set(state) == {"base64"}:
        try:
            return base64.b64decode(state["base64"], validate=True)
        except ValueError as error:
            raise DatasetError(
                f"The position of a Grain DataLoader is damaged: {error}. Start a new pass, or use an older position."
            ) from error
    return state
