"""LitData's chunks: numbered items, and an index of where each begins."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ....errors import DatasetError, ElementError
from ....storage._counts import current_counts
from ....storage._urls import is_url
from ...graph._blocks import Block, concatenate
from ...graph._graph import Node
from ...graph._structure import TensorSpec, flatten
from .._file_names import FileNames
from .._indexed import Index, OpenFile
from .._limits import MAX_SHARD_BYTES
from .._numbered import Numbered, NumberedFormat
from .._url_file import opened
from ..arrays._rows import FileBytes, Layout, RowsFormat
from ._litdata_chunks import Items, damaged, items_of
from ._litdata_index import METHOD, Chunk
from ._litdata_leaves import Leaf, WrongItem

_WORD_BYTES = 4
_AHEAD = 64  # items that are decoded at once


@dataclasses.dataclass(frozen=True)
class LitItems(NumberedFormat):
    """The format of LitDataDataset.

    Args:
        names: The columns to read; None reads all.
        tree: The structure of what is read of an item, with numbers of its values.
        leaves: What reads each of these.
        num_values: How many values an item has, also those that are not read.
        level: What is compressed: "chunk", "batch" or "sample"; "" if nothing is.
        chunks: The chunks by their paths.
        max_chunk_bytes: The most bytes of a chunk that is in memory as a whole.
    """

    names: tuple[str, ...] | None
    tree: Any = dataclasses.field(compare=False)
    leaves: Mapping[int, Leaf] = dataclasses.field(compare=False)
    num_values: int
    levels: Mapping[str, str] = dataclasses.field(compare=False)
    chunks: Mapping[str, Chunk] = dataclasses.field(compare=False)
    max_chunk_bytes: int = MAX_SHARD_BYTES

    @property
    def name(self) -> str:
        return METHOD

    @property
    def settings(self) -> list[str]:
        return [f"columns={list(self.names)}"] if self.names else []

    @functools.cached_property
    def ordered(self) -> tuple[list[int], Any]:
        """The numbers of the values in the order of an element's leaves, and its structure."""
        numbers, structure = flatten(self.tree)
        return [int(number) for number in numbers], structure

    def spec_of(self, paths: Iterator[str]) -> Any:
        numbers, structure = self.ordered
        specs = [self.leaves[number].spec for number in numbers]
        if not self.chunks:
            return None
        if None in specs:
            first = next(filter(None, map(self._first, paths)), None)
            if first is None:
                return None
            specs = [its or TensorSpec((None,) * array.ndim, array.dtype) for its, array in zip(specs, first, strict=True)]
        return structure.unflatten(specs)

    @functools.cached_property
    def spec(self) -> Any:
        """The spec of the items of all chunks."""
        return self.spec_of(iter(self.chunks))

    def _first(self, path: str) -> list[np.ndarray] | None:
        """The values of the first item of a chunk that can be read; None if there is none."""
        try:
            reader = self.opened(path)
        except DatasetError as error:
            if not self.leaves_out(error):
                raise
            return None
        try:
            block = reader.pull(1)
            return None if block is None else [np.asarray(leaf) for leaf in next(block.leaves())]
        except DatasetError as error:
            if not self.leaves_out(error):
                raise
            return None
        finally:
            reader.close()

    def opened(self, path: str) -> "LitReader":
        return LitReader(self, self.chunks[path], opened(self.name, path))

    def cardinality(self, node: Node) -> int:
        if not self.skips and isinstance(node, FileNames):
            return sum(self.chunks[path].items for path in node.tables[0])
        return super().cardinality(node)

    def num_elements(self, path: str, part: int | None) -> int | None:
        return None if self.skips else self.chunks[path].items

    def has_index(self, path: str) -> bool:
        return not self.skips and not is_url(path) and not self.levels[path]

    def index(self, path: str) -> Index:
        return LitIndexOfChunk(self, path)

    def decoded(self, path: str, first: int, data: np.ndarray, places: np.ndarray, spec: Any) -> Block:
        """Return items, of which the first has this number, or those before the first that is damaged.

        Raises:
            ElementError: If the first is.
        """
        numbers, structure = self.ordered
        specs = [None] * len(numbers) if spec is None else structure.flatten_up_to(spec)
        try:
            begins, sizes = self._values(data, places)
            columns = [
                self.leaves[number].column(data, begins[:, number], sizes[:, number], its)
                for number, its in zip(numbers, specs, strict=True)
            ]
        except WrongItem as error:
            if error.row:
                return self.decoded(path, first, data, places[: error.row + 1], spec)
            raise ElementError(
                f"{self.name}: item {first} of {path!r} is damaged: it {error}. Copy or write the file again."
            ) from error
        return Block(structure, columns, len(places) - 1)

    def _values(self, data: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where each value of each item begins, and how many bytes it has."""
        count, head = len(places) - 1, _WORD_BYTES * self.num_values
        if len(short := np.flatnonzero(np.diff(places) < head)):
            raise WrongItem(int(short[0]), f"has {np.diff(places)[short[0]]} bytes, and the sizes of its values alone take {head}")
        heads = data[places[:-1, None] + np.arange(head)] if head else np.empty((count, 0), np.uint8)
        sizes = heads.view("<u4").reshape(count, self.num_values).astype(np.int64)
        ends = places[:-1, None] + head + np.cumsum(sizes, 1)
        last = ends[:, -1] if self.num_values else places[:-1]
        if len(wrong := np.flatnonzero(last != places[1:])):
            row = int(wrong[0])
            raise WrongItem(row, f"has {places[row + 1] - places[row]} bytes, and its values take {last[row] - places[row]}")
        return ends - sizes, sizes


class LitReader(Numbered):
    """Reads one chunk, some items ahead."""

    spec: Any = None  # as that of all chunks, to which values are compared

    def __init__(self, form: LitItems, chunk: Chunk, file: FileBytes) -> None:
        self.form, self.chunk, self.path, self.file = form, chunk, chunk.path, file
        self.size = chunk.items
        self.counts = current_counts()
        self.items: Items | None = None
        self.first, self.held = 0, Block(None, (), 0)

    @property
    def identity(self) -> str:
        return f"{self.size} items in {self.chunk.size} bytes{f', {self.file.identity}' if self.file.identity else ''}"

    def run(self, start: int, stop: int) -> Block:
        if not self.first <= start < self.first + self.held.size:
            self._read(start, min(max(stop, start + _AHEAD), self.size))
        return self.held.take(slice(start - self.first, stop - self.first))

    def _read(self, start: int, stop: int) -> None:
        if self.items is None:
            self.items = items_of(self.chunk, self.form.levels[self.path], self.file, self.form.max_chunk_bytes)
            self._count(len(self.file) if self.items.is_held else 0)
        data, places, read = self.items.read(start, stop)
        self._count(read)
        self.held, self.first = self.form.decoded(self.path, start, data, places, self.spec), start

    def _count(self, num_bytes: int) -> None:
        if isinstance(self.file, OpenFile):  # a store counts what comes from it
            self.counts.add("file_bytes", num_bytes)

    def close(self) -> None:
        self.file.close()


class LitIndexOfChunk(Index):
    """The items of a chunk that lies on this machine, uncompressed."""

    def __init__(self, form: LitItems, path: str) -> None:
        self.form, self.path, self.chunk = form, path, form.chunks[path]
        with OpenFile(form.name, path) as file:
            self.facts = file.facts
        self.offsets: np.ndarray | None = None

    @property
    def size(self) -> int:
        return self.chunk.items

    @property
    def identity(self) -> str:
        return f"{self.chunk.items} items in {self.chunk.size} bytes"

    def read(self, numbers: np.ndarray) -> list[Any]:
        return [*self.block(numbers).elements()]

    def block(self, numbers: np.ndarray) -> Block:
        with OpenFile(self.form.name, self.path, self.facts) as file:
            if self.offsets is None:
                self.offsets = items_of(self.chunk, "", file, self.form.max_chunk_bytes).offsets
            begins, ends = self.offsets[numbers], self.offsets[numbers + 1]
            places = np.concatenate([[0], np.cumsum(ends - begins)])
            data = np.empty(int(places[-1]), np.uint8)
            for begin, at, end in zip(begins.tolist(), places[:-1].tolist(), places[1:].tolist(), strict=True):
                if end > at:
                    file.fill(data[at:end], begin)
        current_counts().add("file_bytes", len(data))
        blocks, done = list[Block](), 0
        while done < len(numbers):
            rest = places[done:] - places[done]
            blocks.append(self.form.decoded(self.path, int(numbers[done]), data[places[done] :], rest, self.form.spec))
            done += blocks[-1].size
        return concatenate(blocks)


@dataclasses.dataclass(frozen=True)
class LitTokens(RowsFormat):
    """The format of LitDataDataset for chunks of token ids: rows of ``block_size`` of them."""

    block_size: int
    dtype: np.dtype
    chunks: Mapping[str, Chunk] = dataclasses.field(compare=False)

    @property
    def name(self) -> str:
        return METHOD

    @property
    def settings(self) -> list[str]:
        return [f"block_size={self.block_size}"]

    @property
    def most_row_bytes(self) -> int:
        return 1 << 62  # the user says how long a row is

    def layout(self, file: FileBytes) -> Layout:
        chunk = self.chunks[file.path]
        begin, count = _WORD_BYTES * (chunk.items + 2), chunk.dim or 0
        if len(file) != chunk.size or begin + count * self.dtype.itemsize != chunk.size:
            raise damaged(
                chunk.path,
                f"it has {len(file)} bytes, and index.json says {chunk.size}, and {count} token ids of {self.dtype} from byte "
                f"{begin} on",
            )
        return Layout(count // self.block_size, begin, self.block_size * self.dtype.itemsize, (self.block_size,), self.dtype)
