"""Datasets of Hugging Face's ``datasets``: tables, and streams. They are recognized by class names, so it is not imported here."""

import collections
import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from ....errors import ArgumentTypeError, DatasetError
from ...graph._blocks import Block
from ...graph._graph import Counting, Cursor, State
from ...graph._structure import component_names, flatten, show_structure
from ...sources._foreign import Foreign
from ...sources._generator import fitted, free_spec
from ._huggingface_columns import HuggingFaceColumns, in_lists, undecoded

_AHEAD = 256  # rows that are made at once
_COMPARED = 32  # rows by which datasets are told apart
_METHOD = "Hugging Face Dataset"


@dataclasses.dataclass(frozen=True, eq=False)
class HuggingFaceRows(Foreign):
    """A ``datasets.Dataset``, whose rows are numbered. A position is the number of the next one."""

    dataset: Any = None

    @property
    def kind(self) -> str:
        return _METHOD

    @property
    def label(self) -> str:
        return f"from_huggingface({len(self.dataset)} rows)"

    @property
    def cardinality(self) -> int:
        return len(self.dataset)

    @property
    def transformed(self) -> bool:
        """Whether a function of the user makes the rows (``set_transform``)."""
        return self.dataset.format["type"] == "custom"

    @property
    def has_files(self) -> bool:
        """Whether rows take much memory, or long to read."""
        return bool(self._columns.files)

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        if not self.transformed:
            return self._columns.spec(self.table(slice(0, 0)).schema)
        return None if not len(self.dataset) else free_spec(*flatten(in_lists(self.dataset[0], None)), f"{_METHOD}: ", "row 0")

    @functools.cached_property
    def _columns(self) -> HuggingFaceColumns:
        return HuggingFaceColumns(_METHOD, features=self.dataset.features)

    @functools.cached_property
    def _as_arrow(self) -> Any:
        return self.dataset.with_format("arrow", columns=self.dataset.format["columns"])

    @property
    def digest(self) -> str:
        return self._digest

    @functools.cached_property
    def _digest(self) -> str:
        """Of rows that are spread over the dataset, before a function of the user changes them."""
        size = len(self.dataset)
        chosen = np.linspace(0, size - 1, min(size, _COMPARED)).astype(np.int64).tolist()
        files = self._columns.files
        rows = repr(
            [
                {name: files[name].facts(value) if name in files else value for name, value in row.items()}
                for row in self.table(chosen).to_pylist()
            ]
        )
        return hashlib.blake2b(f"{size} {rows}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def table(self, rows: slice | list[int]) -> Any:
        """Return some rows as a table of Arrow."""
        return self._as_arrow[rows]

    def rows(self, start: int, stop: int) -> Block:
        """Return some rows."""
        if not self.transformed:
            return self._columns.block(self.table(slice(start, stop)), self.spec, f"the dataset, from row {start} on")
        return _block(self.spec, [in_lists(self.dataset[number], self.spec) for number in range(start, stop)], start)

    def open(self, state: State | None = None) -> Cursor:
        if state and state["next"] and state["rows"] != self.digest:
            raise DatasetError(
                f"{_METHOD}: the position was saved from other rows, or from the same ones in another order. Give every `shuffle` "
                "of the dataset a seed, make it as before, or start the pass again."
            )
        return HuggingFaceRowsCursor(self, state["next"] if state else 0)


class HuggingFaceRowsCursor(Counting):
    """Makes several rows at once. What it holds does not count for the position."""

    def __init__(self, node: HuggingFaceRows, position: int) -> None:
        super().__init__(position, len(node.dataset))
        self.node = node
        self.held: tuple[int, Block] | None = None  # with the number of the first row

    def pull(self, limit: int) -> Block | None:
        if self.position >= self.size:
            return None
        if self.held is None or not self.held[0] <= self.position < self.held[0] + self.held[1].size:
            ahead = limit if self.node.transformed or self.node.has_files else max(limit, _AHEAD)
            self.held = self.position, self.node.rows(self.position, min(self.position + ahead, self.size))
        first, block = self.held
        part = block.take(slice(self.position - first, self.position - first + limit))
        self.position += part.size
        return part

    def reset(self) -> None:
        self.position, self.held = 0, None  # a function of the user may make other rows in the next pass

    def state(self) -> State:
        return {**super().state(), "rows": self.node.digest}


@dataclasses.dataclass(frozen=True, eq=False)
class HuggingFaceStream(Foreign):
    """A ``datasets.IterableDataset``. A position is its own ``state_dict``."""

    dataset: Any = None

    @property
    def kind(self) -> str:
        return "Hugging Face IterableDataset"

    @property
    def label(self) -> str:
        return "from_huggingface(stream)"

    @property
    def spec(self) -> Any:
        return self._spec

    @functools.cached_property
    def _spec(self) -> Any:
        features = self.dataset.features
        if features is not None:
            return self.columns.spec(features.arrow_schema)
        first = next(iter(_copied(self.dataset)), None)
        return None if first is None else free_spec(*flatten(in_lists(first, None)), f"{self.kind}: ", "the first element")

    @functools.cached_property
    def columns(self) -> HuggingFaceColumns:
        """The columns, as far as they are known."""
        return HuggingFaceColumns(self.kind, features=self.dataset.features or {})

    def copied(self) -> Any:
        """Return the stream with a position of its own, whose files and JSON have not been decoded."""
        dataset = _copied(self.dataset)
        for name, feature in self.columns.features.items():
            if (stored := undecoded(feature)) != feature:
                dataset = dataset.cast_column(name, stored)
        return dataset

    def of_worker(self, num_workers: int, worker_index: int) -> "HuggingFaceStream | None":
        if self.dataset.num_shards < num_workers:
            return None
        shared = HuggingFaceStream(dataset=self.dataset.shard(num_shards=num_workers, index=worker_index))
        object.__setattr__(shared, "_spec", self.spec)  # of all elements: this worker may have none
        return shared

    def open(self, state: State | None = None) -> Cursor:
        return HuggingFaceStreamCursor(self, state and state["iterator"], state["next"] if state else 0)


class HuggingFaceStreamCursor(Cursor):
    """Reads a copy of its own, because a stream keeps its position itself."""

    def __init__(self, node: HuggingFaceStream, begin_at: Any, number: int) -> None:
        self.node, self.begin_at, self.number = node, begin_at, number
        self.dataset: Any = None
        self.iterator: Iterator[Any] | None = None

    def pull(self, limit: int) -> Block | None:
        if self.iterator is None:
            self.dataset = self.node.copied()
            if self.begin_at is not None:
                self.dataset.load_state_dict(copy.deepcopy(self.begin_at))
            self.iterator = iter(self.dataset)
            if self.begin_at is None:  # at the beginning, or a stream whose own position loses what its buffer holds
                collections.deque(itertools.islice(self.iterator, self.number), 0)
        rows = list(itertools.islice(self.iterator, limit))
        if not rows:
            return None
        spec, columns = self.node.spec, self.node.columns
        rows = [columns.row(row, spec, f"element {number} of the stream") for number, row in enumerate(rows, self.number)]
        block = _block(spec, rows, self.number)
        self.number += len(rows)
        return block

    def reset(self) -> None:
        self.iterator = self.begin_at = None
        self.number = 0

    def close(self) -> None:
        if self.iterator is not None:
            self.begin_at = self.state()["iterator"]
            self.iterator = None

    def state(self) -> State:
        if self.iterator is None or _has_buffer(getattr(self.dataset, "_ex_iterable", None)):
            return {"iterator": self.begin_at, "next": self.number}
        try:
            own = json.loads(json.dumps(self.dataset.state_dict()))  # a copy: the stream goes on to write into it
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"The position of this {self.node.kind} cannot be saved, because its `state_dict` is not plain data: {error}."
            ) from error
        return {"iterator": own, "next": self.number}


def _has_buffer(examples: Any) -> bool:
    """Whether a stream, or one that it is made of, shuffles in a buffer, whose examples its `state_dict` forgets."""
    if type(examples).__name__ == "BufferShuffledExamplesIterable":
        return True
    parts = [getattr(examples, "ex_iterable", None), *getattr(examples, "ex_iterables", ())]
    return any(_has_buffer(part) for part in parts if part is not None)


def _copied(dataset: Any) -> Any:
    """A stream with a position of its own, over the same file systems: to copy these would change fsspec's table of them."""
    memo: dict[int, Any] = {}
    spec = sys.modules.get("fsspec.spec")
    kinds = [] if spec is None else [spec.AbstractFileSystem]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        table = vars(kind).get("_cache", {})
        memo.update((id(each), each) for each in (table, *table.values()))
    return copy.deepcopy(dataset, memo)


def _block(spec: Any, rows: list[Any], number: int) -> Block:
    """Rows of Python values as elements of this spec."""
    specs, structure = flatten(spec)
    names = component_names(structure)
    made = []
    for i, row in enumerate(rows, number):
        leaves, its = flatten(row)
        if its != structure:
            raise DatasetError(
                f"{_METHOD}: row {i} has the columns {show_structure(its)}, but {show_structure(structure)} are expected. Give "
                "all rows the same columns."
            )
        each = zip(leaves, specs, names, strict=True)
        made.append([fitted(leaf, spec, f"{_METHOD}: {name} of row {i}") for leaf, spec, name in each])
    return Block.of_elements(structure, made)


def is_huggingface(value: Any) -> bool:
    """Return whether this is a dataset or a stream of the package ``datasets``."""
    names = {f"{base.__module__}.{base.__name__}" for base in type(value).__mro__}
    return bool(names & {"datasets.arrow_dataset.Dataset", "datasets.iterable_dataset.IterableDataset"})


def huggingface(dataset: Any) -> Foreign:
    """Return a source of the rows of a dataset.

    Raises:
        ArgumentTypeError: If it is something else.
    """
    names = {f"{base.__module__}.{base.__name__}" for base in type(dataset).__mro__}
    if "datasets.arrow_dataset.Dataset" in names:
        return HuggingFaceRows(dataset=dataset)
    if "datasets.iterable_dataset.IterableDataset" in names:
        return HuggingFaceStream(dataset=dataset)
    splits = f' Choose a split, such as `dataset["{next(iter(dataset))}"]`.' if isinstance(dataset, dict) and dataset else ""
    raise ArgumentTypeError(
        f"from_huggingface takes a Dataset or IterableDataset of the package datasets. Received: {type(dataset).__name__}.{splits}"
    )
