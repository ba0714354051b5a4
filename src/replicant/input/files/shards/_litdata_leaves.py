"""The values in items of LitData's chunks: from bytes to columns, many items at once."""

import dataclasses
import math
from typing import Any

import numpy as np

from ....errors import DatasetError
from ...graph._blocks import Boxed, Column, Dense
from ...graph._structure import STRING, TensorSpec
from ..arrays._rows import usable_rows

_NUMPY = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "?"]
_TORCH = ["f4"] * 2 + ["f8"] * 2 + ["c8"] * 2 + ["c16"] * 2 + ["f2"] * 2  # each has two names
_TORCH += ["-", "u1", "i1", "i2", "i2", "i4", "i4", "i8", "i8", "?", "u2"]  # NumPy has nothing for bfloat16, "-"
_TEXTS, _BYTES = ("str", "text"), ("bytes", "file", "image", "jpeg")
_REMEDIES = {
    "pickle": "to read it would run whatever code the file contains. Write numbers, texts or bytes",
    "graph": "to read it would run whatever code the file contains. Write its tensors",
    "pil": "it holds pixels of many layouts. Write the picture as jpeg, or its file as bytes",
    "json": "LitData lays out lists and dicts of any length in a way of its own. Write `json.dumps(value)`",
}
_MOST_GATHERED = 64  # bytes of a value that is picked byte by byte


class WrongItem(ValueError):
    """An item is not what LitData makes. ``row`` is its place among those that are decoded."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One value of all items.

    Args:
        name: Where it is in an item, for messages.
        kind: "number", "flag", "text", "bytes", "flat", or "numpy" or "tensor", which say their dtypes and shapes themselves.
        dtype: The dtype of a number, or of the numbers of a flat array.
    """

    name: str
    kind: str
    dtype: np.dtype | None = None

    @property
    def spec(self) -> TensorSpec | None:
        """The spec of all values; None if the first one says it."""
        if self.kind in ("text", "bytes"):
            return TensorSpec((), STRING)
        if self.dtype is None:
            return None
        return TensorSpec((None,) if self.kind == "flat" else (), self.dtype)

    def column(self, data: np.ndarray, begins: np.ndarray, sizes: np.ndarray, spec: TensorSpec | None) -> Column:
        """Return the values that begin at these places, which are in the bytes.

        Raises:
            WrongItem: If one is not such a value, or has another dtype or number of dimensions than ``spec`` says.
        """
        if self.kind in ("text", "bytes"):
            return self._texts(data, begins, sizes)
        if self.kind in ("numpy", "tensor"):
            return self._shaped(data, begins, sizes, spec)
        assert self.dtype is not None
        unit = self.dtype.itemsize
        if len(wrong := np.flatnonzero(sizes % unit if self.kind == "flat" else sizes != unit)):
            raise WrongItem(int(wrong[0]), f"has {sizes[wrong[0]]} bytes as {self.name!r}, which is {self.kind} of {self.dtype}")
        if (sizes == sizes[0]).all():
            rows = _together(data, begins, int(sizes[0])).view(self.dtype)
            return Dense(usable_rows(rows if self.kind == "flat" else rows[:, 0]))
        rows = [_numbers(data, begin, size, self.dtype) for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)]
        return Boxed.of(rows)

    def _texts(self, data: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> Column:
        found: list[Any] = []
        for row, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist(), strict=True)):
            value: Any = data[begin : begin + size].tobytes()
            if self.kind == "text":
                try:
                    value = value.decode()
                except UnicodeDecodeError as error:
                    raise WrongItem(row, f"has no text as {self.name!r}: {error}") from error
            found.append(value)
        return Boxed.of(found)

    def _shaped(self, data: np.ndarray, begins: np.ndarray, sizes: np.ndarray, spec: TensorSpec | None) -> Column:
        heads = [self._head(data, row, begin, size) for row, (begin, size) in enumerate(zip(begins, sizes, strict=True))]
        for row, (dtype, shape, _) in enumerate(heads):
            if spec is not None and (dtype != spec.dtype or len(shape) != len(spec.shape)):
                what = f"has {TensorSpec(shape, dtype)} as {self.name!r}, and the first one {spec}"
                raise WrongItem(row, f"{what}. Write all with one dtype and number of dimensions, or leave it out by `columns`")
        dtype, shape, head = heads[0]
        if all(each == heads[0] for each in heads):
            rows = _together(data, begins + head, int(sizes[0]) - head).view(dtype)
            return Dense(usable_rows(rows.reshape(len(heads), *shape)))
        found = [
            _numbers(data, begin + at, size - at, its).reshape(sides)
            for (its, sides, at), begin, size in zip(heads, begins.tolist(), sizes.tolist(), strict=True)
        ]
        return Boxed.of(found)

    def _head(self, data: np.ndarray, row: int, begin: int, size: int) -> tuple[np.dtype, tuple[int, ...], int]:
        """The dtype and the shape of an array, and the number of bytes before its numbers."""
        order, names = ("<", _NUMPY) if self.kind == "numpy" else (">", _TORCH)
        number, rank = np.frombuffer(data[begin : begin + min(size, 8)].tobytes().ljust(8, b"\xff"), f"{order}u4").tolist()
        at = 8 + 4 * rank
        if number < len(names) and names[number] != "-" and at <= size:
            shape = tuple(np.frombuffer(data[begin + 8 : begin + at].tobytes(), f"{order}u4").tolist())
            dtype = np.dtype(names[number])
            if rank <= 32 and at + math.prod(shape) * dtype.itemsize == size:
                return dtype, shape, at
        raise WrongItem(row, f"has {size} bytes as {self.name!r}, which are no {self.kind} that is read")


def leaf_of(name: str, form: str) -> Leaf:
    """Return what reads the values of a format of LitData.

    Raises:
        DatasetError: If they are not read. The message is the end of a sentence that begins with the name.
    """
    kind, _, setting = form.partition(":")
    if kind in ("int", "float") and not setting:
        return Leaf(name, "number", np.dtype({"int": "<i8", "float": "<f8"}[kind]).newbyteorder("="))
    if form == "bool":
        return Leaf(name, "number", np.dtype(bool))
    if form in _TEXTS:
        return Leaf(name, "text")
    if kind in _BYTES:
        return Leaf(name, "bytes")
    if form in ("numpy", "tensor"):
        return Leaf(name, form)
    if kind in ("no_header_numpy", "no_header_tensor"):
        names = _NUMPY if kind == "no_header_numpy" else _TORCH
        if setting.isdecimal() and len(setting) < 4 and int(setting) < len(names) and names[int(setting)] != "-":
            return Leaf(name, "flat", np.dtype(names[int(setting)]))
    remedy = _REMEDIES.get(kind, "Formats that are read are int, float, bool, str, bytes, jpeg, numpy and tensor")
    raise DatasetError(f"has the format {form!r}, which is not read: {remedy}, or leave it out: name others in `columns`.")


def _numbers(data: np.ndarray, begin: int, size: int, dtype: np.dtype) -> np.ndarray:
    return usable_rows(data[begin : begin + size].copy().view(dtype))


def _together(data: np.ndarray, begins: np.ndarray, size: int) -> np.ndarray:
    """So many bytes from each of these places on, one row for each."""
    count = len(begins)
    steps = np.diff(begins)
    if count == 1 or (steps == steps[0]).all():
        step = int(steps[0]) if count > 1 else size
        return np.ascontiguousarray(np.ndarray((count, size), np.uint8, data, int(begins[0]), (step, 1)))
    if size <= _MOST_GATHERED:
        return data[begins[:, None] + np.arange(size)]
    rows = np.empty((count, size), np.uint8)
    for row, begin in zip(rows, begins.tolist(), strict=True):
        row[:] = data[begin : begin + size]
    return rows
