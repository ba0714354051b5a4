"""``arrays.bin``: the bytes of the arrays that are stored whole, one after the other, each with one checksum."""

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import CheckpointError, DamagedCheckpointError
from ..folders._locations import Place, created
from ._files import array_of, as_bytes, dtype_of

ARRAYS = "arrays.bin"
_PIECE = 1 << 22  # bytes that are read at once if only the checksum matters


def write_arrays(file: Place, arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Write the file, and return what the manifest says about each array."""
    records = []
    with created(file) as stream:
        for key, array in arrays.items():
            data = as_bytes(array)
            records.append(
                {
                    "key": key,
                    "dtype": array.dtype.name,
                    "shape": list(array.shape),
                    "offset": stream.tell(),
                    "num_bytes": data.nbytes,
                    "crc32": zlib.crc32(data),
                }
            )
            stream.write(data)
    return records


def check_bytes(path: Place, file: Any, record: Mapping[str, Any]) -> None:
    """Read the bytes of an array in pieces, for their checksum only."""
    file.seek(record["offset"])
    left, checksum = record["num_bytes"], 0
    while left and (piece := file.read(min(left, _PIECE))):
        left -= len(piece)
        checksum = zlib.crc32(piece, checksum)
    _require_whole(path, record, record["num_bytes"] - left, checksum)


def _require_whole(path: Place, record: Mapping[str, Any], found: int, checksum: int) -> None:
    key, num_bytes = record["key"], record["num_bytes"]
    if found != num_bytes:
        raise DamagedCheckpointError(f"{path} is damaged: it ends in the middle of {key!r}, {num_bytes - found} bytes too early.")
    if checksum != record["crc32"]:
        raise DamagedCheckpointError(
            f"{path} is damaged: {key!r} (bytes {record['offset']} to {record['offset'] + num_bytes}) has the checksum "
            f"{checksum}, but should have {record['crc32']}."
        )


def require_size(path: Place, record: Mapping[str, Any], dtype: np.dtype) -> None:
    """Check that an array of this dtype has as many bytes as its record says, and that there are arrays of its shape.

    Raises:
        DamagedCheckpointError: If that is not so.
    """
    num_bytes = math.prod(record["shape"]) * dtype.itemsize
    if num_bytes != record["num_bytes"]:
        raise DamagedCheckpointError(
            f"{path}: {record['key']!r} cannot be {dtype}{record['shape']}: that has {num_bytes} bytes, but {record['num_bytes']} "
            "are stored."
        )
    if num_bytes == 0:  # next to a 0, other sizes may be huge
        array_of(path, record["key"], np.empty(0, np.uint8), dtype, record["shape"])


def read_array(path: Place, file: Any, record: Mapping[str, Any]) -> np.ndarray:
    """Read an array from the open file, and check its bytes."""
    key = record["key"]
    file.seek(record["offset"])
    try:
        data = np.empty(record["num_bytes"], np.uint8)
    except MemoryError as error:
        raise CheckpointError(f"{path}: there is not enough memory for {key!r}, which has {record['num_bytes']} bytes.") from error
    found = file.readinto(data)
    _require_whole(path, record, found, zlib.crc32(data.data))
    return array_of(path, key, data, dtype_of(path, record), record["shape"])
