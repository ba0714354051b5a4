"""The records of a bundle's index: what is said about all tensors, about each, and about the slices of one."""

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...._protobuf import MessageError, as_bytes, as_integer, fields, packed_integers
from ....errors import CheckpointError
from ...format._boxes import Box
from ._damage import damaged, require, shown

_VERSION = 1  # of the formats of bundles and of files of the first Saver that is read here
_MOST_AXES = 64  # of NumPy's arrays
_MOST_ELEMENTS = 1 << 59  # of at most 16 bytes
_LENGTHS_CHECKSUM = 4  # bytes of a tensor of strings, beside at least one for the length of each
_WHOLE_AXIS = -1  # in place of the length of a slice

Slice: TypeAlias = tuple[tuple[int, int], ...]  # for each axis the first index and the length, or -1 for the whole axis


class Header(NamedTuple):
    """What is said about all tensors: in how many files they are, and whether their numbers begin with the high byte."""

    num_shards: int
    is_big_endian: bool


class Entry(NamedTuple):
    """What is said about a tensor or a slice: its bytes are a range of one file, or it has slices."""

    dtype: int = 0
    shape: tuple[int, ...] = ()
    shard: int = 0
    offset: int = 0
    size: int = 0
    checksum: int = 0
    slices: tuple[Slice, ...] = ()


def header_of(file: Any, message: memoryview) -> Header:
    """Parse BundleHeaderProto.

    Raises:
        MessageError: If it is something else.
        CheckpointError: If it is for readers of a newer version, or says something impossible.
    """
    num_shards = endianness = 0
    for number, value in fields(message):
        if number == 1:
            num_shards = as_integer(value)
        elif number == 2:
            endianness = as_integer(value)
        elif number == 3:
            check_version(file, as_bytes(value))
    require(num_shards > 0, file, f"it says that the tensors are in {num_shards} files")
    require(endianness in (0, 1), file, f"it names the order of bytes {endianness}, but there are only 0 (little) and 1 (big)")
    return Header(num_shards, endianness == 1)


def check_version(file: Any, message: memoryview) -> None:
    """Check that VersionDef allows readers of this version.

    Raises:
        MessageError: If it is something else.
        CheckpointError: If it does not.
    """
    for number, value in fields(message):
        if number == 2 and as_integer(value) > _VERSION:
            raise CheckpointError(
                f"{file} is for readers of version {as_integer(value)} or newer of the format, and this one is of version "
                f"{_VERSION}. Upgrade Replicant, or save again with an older TensorFlow."
            )
        if number == 3 and _VERSION in packed_integers(value):
            raise CheckpointError(f"{file} says that readers of version {_VERSION} of the format, like this one, must not read it.")


def entry_of(message: memoryview) -> Entry:
    """Parse BundleEntryProto.

    Raises:
        MessageError: If it is something else.
    """
    found: dict[str, Any] = {}
    slices: list[Slice] = []
    for number, value in fields(message):
        if number == 2:
            found["shape"] = shape_of(as_bytes(value))
        elif number == 6:
            raw = as_bytes(value)
            if len(raw) != 4:
                raise MessageError(f"its checksum has {len(raw)} bytes")
            found["checksum"] = int.from_bytes(raw, "little")
        elif number == 7:
            slices.append(slice_of(as_bytes(value)))
        elif number in _INTEGERS:
            found[_INTEGERS[number]] = as_integer(value)
    return Entry(**found, slices=tuple(slices))


_INTEGERS = {1: "dtype", 3: "shard", 4: "offset", 5: "size"}


def shape_of(message: memoryview) -> tuple[int, ...]:
    """Parse TensorShapeProto. Sizes can be negative: who uses them checks that.

    Raises:
        MessageError: If it is something else, or of unknown rank.
    """
    sizes = []
    for number, value in fields(message):
        if number == 2:
            own = [as_integer(size) for each, size in fields(as_bytes(value)) if each == 1]
            sizes.append(own[-1] if own else 0)
        elif number == 3 and as_integer(value):
            raise MessageError("its shape is of unknown rank")
    return tuple(sizes)


def slice_of(message: memoryview) -> Slice:
    """Parse TensorSliceProto.

    Raises:
        MessageError: If it is something else.
    """
    extents = []
    for number, value in fields(message):
        if number == 1:
            found = {each: as_integer(size) for each, size in fields(as_bytes(value))}
            extents.append((found.get(1, 0), found.get(2, _WHOLE_AXIS)))
    return tuple(extents)


def box_in(file: Any, key: str, own: Slice, shape: tuple[int, ...]) -> Box:
    """Return the box of a slice in a tensor of this shape.

    Raises:
        DamagedCheckpointError: If it is not within the tensor.
    """
    require(len(own) in (0, len(shape)), file, f"a slice of {shown(key)} has {len(own)} axes, but the tensor has {len(shape)}")
    box = tuple(
        (0, size) if (start, length) == (0, _WHOLE_AXIS) else (start, start + length)
        for (start, length), size in zip(own or [(0, _WHOLE_AXIS)] * len(shape), shape, strict=True)
    )
    require(
        all(0 <= start <= stop <= size for (start, stop), size in zip(box, shape, strict=True)),
        file,
        f"the slice {own} of {shown(key)} is not within its shape {shape}",
    )
    return box


def check_shape(file: Any, key: str, shape: tuple[int, ...]) -> None:
    """Check that an array can have a shape.

    Raises:
        DamagedCheckpointError: If none can.
    """
    # NumPy multiplies the sizes beside a 0, too.
    if len(shape) > _MOST_AXES or min(shape, default=0) < 0 or math.prod(filter(None, shape)) >= _MOST_ELEMENTS:
        told = str(shape) if len(shape) <= _MOST_AXES else f"one of {len(shape)} axes"
        raise damaged(file, f"the shape of {shown(key)} is {told}, which no array has")


def check_size(file: Any, key: str, entry: Entry, dtype: np.dtype) -> None:
    """Check that a tensor or slice has as many bytes as its shape needs, or at least as many if it has strings.

    Raises:
        DamagedCheckpointError: If it has not.
    """
    count, strings = math.prod(entry.shape), dtype.hasobject
    needed = count + _LENGTHS_CHECKSUM if strings else count * dtype.itemsize
    if entry.size < needed or (entry.size > needed and not strings):
        raise damaged(
            file,
            f"{shown(key)} has {entry.size} bytes, but its shape {entry.shape} and dtype {dtype} need "
            f"{'at least ' if strings else ''}{needed}",
        )
