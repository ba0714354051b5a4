"""Checkpoints of TensorFlow before 0.12, and of a Saver with write_version V1: a table with the values themselves.

The record with the empty key, SavedTensorSlices, names all tensors with their slices; each other one holds the values of a slice.
"""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from ..._protobuf import MessageError, as_bytes, as_integer, as_text, fields
from ..folders._locations import Place
from ..format._boxes import Box, overlap, sizes_of, within
from ..format._files import array_of
from ..format._readers import Readers
from ._object_graph import ObjectGraph
from .files._cover import check_cover
from .files._damage import damaged, reading, require, shown
from .files._dtypes import VARIANT, dtype_of
from .files._entry import Slice, box_in, check_shape, check_version, shape_of, slice_of
from .files._file_bytes import FileBytes
from .files._index import no_such_key
from .files._part import checked_part
from .files._slice_key import slice_key
from .files._table import Table
from .files._tensor_proto import values_of


class _Meta(NamedTuple):
    """What is said about a tensor: its slices, each with the table that has its values."""

    dtype: int
    shape: tuple[int, ...]
    slices: list[tuple[Slice, Table]]


class SaverFile:
    """A checkpoint in one file, or in several whose names end in ``-00000-of-00002``, that hold the values in a table.

    Only the blocks of the table are read that hold what is asked for.

    Args:
        path: The name without an ending such as ``-00000-of-00002``.
        files: The files.

    Raises:
        CheckpointError: If one is missing or damaged, or of a version that is unknown here.
    """

    def __init__(self, path: Place, files: Sequence[Place]):
        self.path = str(path)
        self._metas: dict[str, _Meta] = {}
        for file in files:
            table = Table(FileBytes(Readers(file.parent), file.name))
            record = table.find(b"")
            require(record is not None, file, "it has no record with the empty key, which names the tensors")
            with reading(file, " of the empty key"):
                self._add(table, record or memoryview(b""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no file stays open between two calls."""

    def keys(self) -> list[str]:
        """Return the names of all tensors, sorted."""
        return sorted(key for key, meta in self._metas.items() if meta.dtype != VARIANT)

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a tensor.

        Raises:
            CheckpointError: If there is no such tensor.
        """
        return self._meta(key).shape

    def dtype(self, key: str) -> np.dtype:
        """Return the dtype of a tensor: ``object`` for strings.

        Raises:
            CheckpointError: If there is no such tensor, or nothing here can hold its values.
        """
        return dtype_of(self.path, key, self._meta(key).dtype)

    def read(self, key: str) -> np.ndarray:
        """Read a tensor into memory of its own: strings as bytes objects.

        Raises:
            CheckpointError: If there is no such tensor, or it is damaged. The message names the file and the tensor.
        """
        return self.read_part(key, tuple(slice(None) for _ in self.shape(key)))

    def read_part(self, key: str, index: tuple[slice, ...]) -> np.ndarray:
        """Read a part of a tensor into memory of its own. Only the slices are read that have elements of it.

        Args:
            key: The name of the tensor.
            index: A slice with step 1 for each axis.

        Raises:
            ArgumentError: If it is not such an index.
            CheckpointError: As `read`.
        """
        return self.read_parts(key, [index])[0]

    def read_parts(self, key: str, indices: Sequence[tuple[slice, ...]]) -> list[np.ndarray]:
        """Read several parts of a tensor as `read_part` does, each slice in the files once."""
        meta, dtype = self._meta(key), self.dtype(key)
        boxes = [checked_part(key, index, meta.shape) for index in indices]
        owns = [box_in(table.path, key, own, meta.shape) for own, table in meta.slices]
        check_cover(self.path, key, meta.shape, owns)
        parts = [
            (box, self._values(key, own, table, box))
            for box, (own, table) in zip(owns, meta.slices, strict=True)
            if any(overlap(box, each) is not None for each in boxes)
        ]
        return [_joined(box, parts, dtype) for box in boxes]

    def graph(self) -> ObjectGraph | None:
        """Return None: such a checkpoint says nothing about objects."""
        return None

    def _meta(self, key: str) -> _Meta:
        if key not in self._metas:
            raise no_such_key(self.path, key, self.keys())
        return self._metas[key]

    def _add(self, table: Table, record: memoryview) -> None:
        """Add the tensors that a table has, from its record with the empty key."""
        for meta in (as_bytes(value) for number, value in fields(record) if number == 1):
            for number, value in fields(meta):
                if number == 1:
                    self._add_tensor(table, as_bytes(value))
                elif number == 2:
                    check_version(table.path, as_bytes(value))

    def _add_tensor(self, table: Table, message: memoryview) -> None:
        name, shape, dtype = "", (), 0
        slices: list[tuple[Slice, Table]] = []
        for number, value in fields(message):
            if number == 1:
                name = as_text(value)
            elif number == 2:
                shape = shape_of(as_bytes(value))
            elif number == 3:
                dtype = as_integer(value)
            elif number == 4:
                slices.append((slice_of(as_bytes(value)), table))
        check_shape(table.path, name, shape)
        known = self._metas.setdefault(name, _Meta(dtype, shape, []))
        require(
            known[:2] == (dtype, shape),
            table.path,
            f"{shown(name)} has shape {shape} and dtype number {dtype}, but elsewhere {known.shape} and {known.dtype}",
        )
        known.slices.extend(slices)

    def _values(self, key: str, own: Slice, table: Table, box: Box) -> np.ndarray:
        number, dtype = self._meta(key).dtype, self.dtype(key)
        record = table.find(slice_key(key.encode(), own))
        if record is None:
            raise damaged(table.path, f"the slice {own} of {shown(key)} is missing")
        with reading(table.path, f" of {shown(key)}"):
            values = values_of(_data_of(record, key, own), number, dtype, math.prod(sizes_of(box)))
        return (
            values.reshape(sizes_of(box))
            if dtype.hasobject
            else array_of(table.path, key, values.view(np.uint8), dtype, sizes_of(box))
        )


def _data_of(record: memoryview, key: str, own: Slice) -> memoryview:
    """The TensorProto of a slice, in SavedTensorSlices."""
    data = [as_bytes(value) for number, value in fields(record) if number == 2]
    found: dict[int, Any] = dict(fields(data[-1])) if data else {}
    if as_text(found.get(1, memoryview(b""))) != key or slice_of(as_bytes(found.get(2, memoryview(b"")))) != own:
        raise MessageError("it is about another tensor or slice")
    return as_bytes(found.get(3, memoryview(b"")))


def _joined(box: Box, parts: Sequence[tuple[Box, np.ndarray]], dtype: np.dtype) -> np.ndarray:
    """A part of a tensor out of its slices."""
    if len(parts) == 1 and parts[0][0] == box:
        return parts[0][1]
    whole = np.empty(sizes_of(box), dtype)
    for own, values in parts:
        if (both := overlap(own, box)) is not None:
            whole[within(both, box)] = values[within(both, own)]
    return whole
