"""The elements in the files of a saved dataset: a record for each component, which is a TensorProto."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...._protobuf import MessageError, as_bytes, as_integer, fields, varint
from ....errors import DatasetError
from ...graph._blocks import Block
from ...graph._graph import UNKNOWN, Node
from ...graph._structure import STRING, TensorSpec, flatten
from .._file_format import FileReader
from .._format import Format, Reader
from ..records._example_values import objects
from ..records._tfrecord import Records
from ._folder import DTYPES, shape_of

_DTYPE, _SHAPE, _CONTENT = 1, 2, 4  # fields of TensorProto; tf.data writes all values as contents
_AT_ONCE = 8 << 20  # bytes of records that are read before elements are given


class _TFRecords(Records):
    """TFRecord files, under the name of the method that reads them."""

    @property
    def name(self) -> str:
        return "load"


@dataclasses.dataclass(frozen=True)
class TfDataElements(Format):
    """The format of the files of ``tf.data.Dataset.save``. ``size`` is the number of elements, if it is known."""

    folder: str
    spec: Any
    compression: str
    max_record_bytes: int
    size: int = UNKNOWN

    @property
    def name(self) -> str:
        return "load"

    @property
    def label(self) -> str:
        return f"load({self.folder})"

    @functools.cached_property
    def leaves(self) -> tuple[list[TensorSpec], Any]:
        """The specs of the components, and the structure of an element."""
        return flatten(self.spec)

    def spec_of(self, paths: Iterator[str]) -> Any:
        return self.spec

    def cardinality(self, node: Node) -> int:
        return self.size

    def open(self, path: str, position: Any, spec: Any, part: int | None = None, identity: str | None = None) -> Reader:
        number, begin = position or (0, 0)
        records = _TFRecords(self.compression, max_record_bytes=self.max_record_bytes)
        return TfDataReader(self, path, FileReader(records, path, begin, identity), number)


class TfDataReader(Reader):
    """Reads one file. The position is the number of the next element, and its byte in the uncompressed file."""

    def __init__(self, form: TfDataElements, path: str, records: FileReader, number: int) -> None:
        self.form, self.path, self.records, self.number = form, path, records, number

    @property
    def identity(self) -> str | None:
        return self.records.identity

    @property
    def position(self) -> Any:
        return [self.number, self.records.position]

    def pull(self, limit: int) -> Block | None:
        specs, structure = self.form.leaves
        made: list[list[Any]] = []
        size = 0
        while len(made) < limit and size < _AT_ONCE and (element := self._element(len(specs))) is not None:
            begin, parts = element
            self.number += 1
            made.append([self._tensor(part, spec, begin) for part, spec in zip(parts, specs, strict=True)])
            size += sum(map(len, parts))
        if self.form.size != UNKNOWN and (self.number > self.form.size or (not made and self.number < self.form.size)):
            found = f"{self.number} elements" + (" or more" if made else "")
            raise DatasetError(
                f"load: {self.path!r} has {found}, and snapshot.metadata says {self.form.size}. Copy the folder again, or save the "
                "dataset again."
            )
        return Block.of_elements(structure, made) if made else None

    def _element(self, count: int) -> tuple[int, list[bytes]] | None:
        """Where the next element begins, and its records; None at the end."""
        begin, parts = self.records.position, list[bytes]()
        while len(parts) < count and len(more := self.records.read(count - len(parts))):
            parts += more.tolist()
        if parts and len(parts) < count:
            raise self._wrong(begin, f"it has {len(parts)} components, and {count} are expected")
        return (begin, parts) if parts else None

    def _wrong(self, begin: int, what: str) -> DatasetError:
        return DatasetError(
            f"load: the element at byte {begin} of {self.path!r} is not what tf.data writes: {what}. Save the dataset again."
        )

    def _tensor(self, data: bytes, spec: TensorSpec, begin: int) -> Any:
        try:
            return _tensor(data, spec)
        except MessageError as error:
            raise self._wrong(begin, str(error)) from error

    def close(self) -> None:
        self.records.close()


def _tensor(data: bytes, spec: TensorSpec) -> Any:
    """The values in a TensorProto."""
    found = dict(fields(memoryview(data)))
    if others := {*found} - {_DTYPE, _SHAPE, _CONTENT}:
        raise MessageError(f"a component has the fields {sorted(others)}")
    dtype = DTYPES.get(as_integer(found.get(_DTYPE, 0)))
    shape = shape_of(as_bytes(found.get(_SHAPE, memoryview(b""))))
    if dtype != spec.dtype or len(shape) != len(spec.shape) or not all(map(_fits, shape, spec.shape)):
        raise MessageError(f"a component has the shape {shape} and dtype {dtype}, and {spec} is expected")
    return _values(as_bytes(found.get(_CONTENT, memoryview(b""))), spec.dtype, [size or 0 for size in shape])


def _fits(size: int | None, expected: int | None) -> bool:
    return size is not None and expected in (None, size)


def _values(content: memoryview, dtype: np.dtype, shape: list[int]) -> Any:
    """The values of a component."""
    count = math.prod(shape)
    if dtype == STRING:
        found = objects(_texts(content, count)).reshape(shape)
        return found if found.ndim else found[()]
    if len(content) != count * dtype.itemsize:
        raise MessageError(f"a component of shape {tuple(shape)} and dtype {dtype} has {len(content)} bytes")
    return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype).reshape(shape)[()]


def _texts(content: memoryview, count: int) -> list[bytes]:
    """Byte strings: the length of each, and then the bytes of all."""
    lengths: list[int] = []
    at = 0
    if count > len(content):
        raise MessageError(f"{count} strings have {len(content)} bytes, and their lengths alone take more")
    for _ in range(count):
        length, at = varint(content, at)
        lengths.append(length)
    if at + sum(lengths) != len(content):
        raise MessageError(f"strings of {sum(lengths)} bytes have {len(content) - at}")
    data, found = bytes(content[at:]), list[bytes]()
    begin = 0
    for length in lengths:
        found.append(data[begin : begin + length])
        begin += length
    return found
