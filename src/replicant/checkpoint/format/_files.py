"""The bytes of arrays in a checkpoint's files, and how these files are opened."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from ..._whole_file import open_regular
from ...errors import CheckpointError, DamagedCheckpointError
from ...storage._path import RangeReader, RemotePath
from ..folders._locations import Place


def open_file(file: Place) -> BinaryIO | RangeReader:
    """Open a file for reading. A pipe in its place does not block, and a device is not touched."""
    if isinstance(file, RemotePath):
        return file.open_to_read()
    return open_regular(file)


def as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of `array` in C order and little-endian, without a copy if they are so already."""
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def dtype_of(path: Place, record: Mapping[str, Any]) -> np.dtype:
    """Return the dtype that the record of an array names.

    Raises:
        CheckpointError: If there is no such dtype here, or if no array in a checkpoint can have it.
    """
    try:
        dtype = np.dtype(record["dtype"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: {record['key']!r} has the dtype {record['dtype']!r}, which this NumPy and JAX do not know; upgrade them."
        ) from error
    if dtype.name != record["dtype"] or not is_storable(dtype):
        raise DamagedCheckpointError(
            f"{path}: {record['key']!r} has the dtype {record['dtype']!r}, which no array in a checkpoint has."
        )
    return dtype


def array_of(path: Place, key: str, data: np.ndarray, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """Return the array that has these bytes.

    Raises:
        DamagedCheckpointError: If no array has them. The message names the file.
    """
    if dtype == np.bool_ and data.max(initial=0) > 1:
        raise DamagedCheckpointError(f"{path} is damaged: {key!r} is of dtype bool, but has a byte that is neither 0 nor 1.")
    array = data.view(dtype.newbyteorder("<") if sys.byteorder == "big" else dtype)
    try:
        return array.astype(dtype, copy=False).reshape(shape)
    except ValueError as error:  # next to a 0, other sizes may be huge, but NumPy limits them
        raise DamagedCheckpointError(f"{path}: {key!r} cannot have the shape {shape} ({error}).") from error


def is_storable(dtype: np.dtype) -> bool:
    """Return whether bytes and a dtype's name describe an array completely, unlike objects and strings."""
    try:
        return not dtype.hasobject and dtype.itemsize > 0 and np.dtype(dtype.name) == dtype.newbyteorder("=")
    except TypeError:
        return False


def is_size(value: Any) -> bool:
    """Return whether a value from a manifest can be a size, an offset or a checksum."""
    return type(value) is int and 0 <= value < 1 << 63
