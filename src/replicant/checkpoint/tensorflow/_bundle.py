"""TensorFlow's TensorBundle: an index in a table, and the bytes of all tensors in one or more files of raw numbers."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np

from ..folders._locations import Place
from ..format._boxes import Box, overlap, sizes_of
from ..format._readers import Readers
from ._object_graph import GRAPH_KEY, ObjectGraph, graph_of
from ._prefix import index_of
from .files._damage import reading, require, shown
from .files._dtypes import VARIANT, dtype_of
from .files._entry import Entry, check_size
from .files._file_bytes import FileBytes
from .files._index import Index
from .files._part import checked_part
from .files._table import Table
from .files._tensor_bytes import TensorBytes


class TensorBundle:
    """A checkpoint as TensorFlow writes it since version 0.12: ``<prefix>.index``, ``<prefix>.data-00000-of-00001``, ...

    The index is read once, and of the other files only what is asked for. Every byte that is read is checked against a checksum.
    Several threads may read at once. No file stays open between two calls.

    Args:
        prefix: What the names of its files begin with.

    Raises:
        CheckpointError: If the index is missing or damaged, or of a version that is unknown here.
    """

    def __init__(self, prefix: Place):
        self.path, self._prefix = str(prefix), prefix
        self._index = Index(Table(FileBytes(Readers(prefix.parent), index_of(prefix).name)))
        self._readers, self._files = Readers(prefix.parent), dict[int, FileBytes]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Forget what was read of objects at URLs. Reading again is allowed."""
        self._readers, self._files = Readers(self._prefix.parent), {}

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted by their bytes, without those that only TensorFlow can use (variants)."""
        return [key for key, entry in self._index.entries.items() if entry.dtype != VARIANT]

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            CheckpointError: If there is no such tensor, or its record is damaged.
        """
        return self._index.entry(key).shape

    def dtype(self, key: str) -> np.dtype:
        """Return the dtype of a tensor: ``object`` for strings.

        Raises:
            CheckpointError: If there is no such tensor, or nothing here can hold its values.
        """
        return dtype_of(self._index.path, key, self._index.entry(key).dtype)

    def read(self, key: str) -> np.ndarray:
        """Read a tensor into memory of its own: strings as bytes objects.

        Raises:
            CheckpointError: If there is no such tensor, or it is damaged. The message names the file and the tensor.
        """
        entry = self._index.entry(key)
        dtype = dtype_of(self._index.path, key, entry.dtype)
        if not entry.slices:
            return self._bytes_of(key, entry, dtype).read()
        return self._joined(key, dtype, [tuple((0, size) for size in entry.shape)])[0]

    def read_part(self, key: str, index: tuple[slice, ...]) -> np.ndarray:
        """Read a part of a tensor into memory of its own. All of its bytes are read and checked, a piece at a time.

        Of a tensor that was saved in slices, only the slices are read that have elements of the part.

        Args:
            key: The name of the tensor.
            index: A slice with step 1 for each axis.

        Raises:
            ArgumentError: If it is not such an index.
            CheckpointError: As `read`.
        """
        return self.read_parts(key, [index])[0]

    def read_parts(self, key: str, indices: Sequence[tuple[slice, ...]]) -> list[np.ndarray]:
        """Read several parts of a tensor as `read_part` does, each byte in the files once."""
        dtype, shape = self.dtype(key), self.shape(key)
        return self._joined(key, dtype, [checked_part(key, index, shape) for index in indices])

    def graph(self) -> ObjectGraph | None:
        """Return the graph of the objects that were saved; None if only variables with names were.

        Raises:
            CheckpointError: If it is damaged.
        """
        if GRAPH_KEY not in self._index.entries:
            return None
        message = self.read(GRAPH_KEY)
        require(message.dtype == object and message.shape == (), self._index.path, "its graph of objects is not a single string")
        with reading(self._index.path, f" of {shown(GRAPH_KEY)}"):
            return graph_of(self._index.path, memoryview(message.item()))

    def _joined(self, key: str, dtype: np.dtype, boxes: Sequence[Box]) -> list[np.ndarray]:
        """Some boxes of a tensor, of which all slices are checked before memory is taken."""
        entry = self._index.entry(key)
        own = self._index.parts(key) if entry.slices else [(tuple((0, size) for size in entry.shape), entry)]
        parts = [
            (box, self._bytes_of(key, part, dtype)) for box, part in own if any(overlap(box, each) is not None for each in boxes)
        ]
        for _, part in parts:
            part.require_there()
        with reading(self._index.path, f" of {shown(key)}"):
            found = [np.empty(sizes_of(box), dtype) for box in boxes]
        for box, part in parts:
            part.read_into(box, list(zip(boxes, found, strict=True)))
        return found

    def _bytes_of(self, key: str, entry: Entry, dtype: np.dtype) -> TensorBytes:
        check_size(self._index.path, key, entry, dtype)
        return TensorBytes(self._file(entry.shard), key, entry, dtype, self._index.header.is_big_endian)

    def _file(self, shard: int) -> FileBytes:
        file = self._files.get(shard)
        if file is None:
            name = f"{self._prefix.name}.data-{shard:05d}-of-{self._index.header.num_shards:05d}"
            file = self._files.setdefault(shard, FileBytes(self._readers, name))
        return file
