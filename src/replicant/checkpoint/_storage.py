"""A checkpoint on disk: a folder with ``manifest.json`` and ``arrays.bin``, which exists completely or not at all.

``arrays.bin`` holds the bytes of the arrays, one after the other, in C order and little-endian. ``manifest.json`` describes them,
and carries a checksum of each array and of itself, so damage to any byte is found before a value is used. Nothing in either file
could be executed. The checksums find damage, not forgery, so everything in the manifest is checked before it is relied on, and
reading needs no more memory than the files have bytes.
"""

import errno
import json
import math
import os
import stat
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CheckpointError, DamagedCheckpointError
from ._atomic_folder import appearing, flush, write_durably

FORMAT = "replicant-checkpoint"
VERSION = 2
MANIFEST = "manifest.json"
ARRAYS = "arrays.bin"
_PIECE = 1 << 22  # bytes that are read at once if only the checksum matters
_MAX_MANIFEST = 1 << 30  # bytes; ten thousand variables need two million
_MAX_RANK = 64  # of a NumPy array
_RECORD = {"key", "dtype", "shape", "offset", "num_bytes", "crc32"}


def write(path: Path, meta: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint to the new folder `path`.

    Args:
        path: The folder, which must not exist; its parents are created.
        meta: Anything that JSON can hold.
        arrays: Arrays of any dtype that has a name (bfloat16 and float8 too), but not of objects or strings.

    Raises:
        CheckpointError: If `path` exists or cannot be written; nothing of it is left then.
    """
    try:
        with appearing(path) as folder:
            records = _write_arrays(folder / ARRAYS, arrays)
            body = {"format": FORMAT, "version": VERSION, "meta": meta, "arrays": records}
            write_durably(folder / MANIFEST, _dump({**body, "checksum": _checksum(body)}))
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} could not be written ({error}). Nothing of it is left.") from error


def is_foreign(path: Path) -> bool:
    """Return whether the folder `path` has a manifest that another program wrote for its own purposes."""
    try:
        manifest = _parse(path / MANIFEST, _read_bytes(path / MANIFEST))
    except (OSError, DamagedCheckpointError):
        return False
    return _is_foreign(manifest)


def _is_foreign(manifest: dict[str, Any]) -> bool:
    return manifest.get("format") != FORMAT and "checksum" not in manifest


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the metadata and the arrays of the folder `path`; every array has its own memory.

    Raises:
        CheckpointError: If anything is missing, damaged or of an unknown version. The message names the file.
    """
    manifest = read_manifest(path)
    return manifest["meta"], read_arrays(path, manifest["arrays"])


def read_arrays(path: Path, records: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Read the arrays that these records of a manifest describe; the others are not touched.

    Raises:
        CheckpointError: If one of them is damaged. The message names the file.
    """
    try:
        with _open(path / ARRAYS) as file:
            return {record["key"]: _read_array(path / ARRAYS, file, record) for record in records}
    except OSError as error:
        raise DamagedCheckpointError(f"{path / ARRAYS} could not be read ({error}).") from error


def verify(path: Path) -> dict[str, Any]:
    """Check every byte of the folder `path`, and return its metadata.

    Raises:
        CheckpointError: If anything is missing or damaged. The message names the file.
    """
    return verified_manifest(path)["meta"]


def verified_manifest(path: Path) -> dict[str, Any]:
    """Check every byte of the folder `path`, and return its manifest.

    Raises:
        CheckpointError: If anything is missing or damaged. The message names the file.
    """
    manifest = read_manifest(path)
    try:
        with _open(path / ARRAYS) as file:
            for record in manifest["arrays"]:
                _check_bytes(path / ARRAYS, file, record)
    except OSError as error:
        raise DamagedCheckpointError(f"{path / ARRAYS} could not be read ({error}).") from error
    return manifest


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of the folder `path`, and check that its arrays are complete (but not their bytes).

    Raises:
        CheckpointError: If a file is missing, the manifest is damaged, or the arrays' size differs. The message names the file.
    """
    file = path / MANIFEST
    text = _read_text(file)
    manifest = _parse(file, text)
    if _is_foreign(manifest):
        raise CheckpointError(
            f"{file} is not the manifest of a checkpoint: its format is {manifest.get('format')!r}, not {FORMAT!r}."
        )
    expected = manifest.pop("checksum", None)
    try:
        found, as_written = _checksum(manifest), _dump({**manifest, "checksum": expected})
    except RecursionError as error:  # writing needs more stack than parsing
        raise DamagedCheckpointError(f"{file} is damaged: its values are nested too deeply.") from error
    if expected != found:
        raise DamagedCheckpointError(f"{file} is damaged: its checksum is {found}, but it says {expected!r}.")
    if text != as_written:  # finds two values under one name, too
        raise DamagedCheckpointError(f"{file} is damaged: its contents are right, but it is not written in the usual way.")
    if manifest.get("version") != VERSION:  # every version has this checksum, so the number is the one that was written
        raise CheckpointError(
            f"{file} has version {manifest.get('version')!r} of the checkpoint format; this Replicant reads version {VERSION}. "
            "Install the Replicant that wrote it, or a newer one."
        )
    num_bytes = _check_records(file, manifest)
    try:
        size = (path / ARRAYS).stat().st_size
    except OSError as error:
        raise DamagedCheckpointError(f"{path / ARRAYS} is missing ({error}); it should have {num_bytes} bytes.") from error
    if size != num_bytes:
        raise DamagedCheckpointError(f"{path / ARRAYS} is damaged: it has {size} bytes, but should have {num_bytes}.")
    return manifest


def _read_text(file: Path) -> bytes:
    try:
        return _read_bytes(file)
    except OSError as error:
        kind = DamagedCheckpointError if (file.parent / ARRAYS).exists() else CheckpointError
        raise kind(f"There is no readable checkpoint at {file.parent}: {error}.{_neighbours(file.parent)}") from error


def _open(file: Path) -> BinaryIO:
    """Open a file for reading. A pipe in its place does not block, and a device is not touched."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "It is not a regular file", str(file))
    return os.fdopen(descriptor, "rb")


def _read_bytes(file: Path) -> bytes:
    with _open(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > _MAX_MANIFEST:
            raise DamagedCheckpointError(f"{file} is damaged: it has {size} bytes, but a manifest has at most {_MAX_MANIFEST}.")
        return stream.read(_MAX_MANIFEST)


def _parse(file: Path, text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except ValueError as error:  # also if it is not UTF-8
        raise DamagedCheckpointError(f"{file} is damaged: it is not JSON ({error}).") from error
    except RecursionError as error:
        raise DamagedCheckpointError(f"{file} is damaged: its values are nested too deeply.") from error
    if not isinstance(manifest, dict):
        raise DamagedCheckpointError(f"{file} is damaged: it should be a JSON object, but is a {type(manifest).__name__}.")
    return manifest


def _check_records(file: Path, manifest: dict[str, Any]) -> int:
    """Return the number of bytes of all arrays.

    Raises:
        DamagedCheckpointError: Unless the records describe arrays that follow each other, as they are written.
    """
    records = manifest.get("arrays")
    if not isinstance(records, list) or "meta" not in manifest:
        raise DamagedCheckpointError(f"{file} is damaged: it has no list of arrays or no meta.")
    end, keys = 0, set()
    for number, record in enumerate(records):
        problem = _problem(record, end)
        if problem is None and record["key"] in keys:
            problem = f"there are two with the name {record['key']!r}"
        if problem is not None:
            raise DamagedCheckpointError(f"{file} is damaged: array {number} cannot be right: {problem}.")
        keys.add(record["key"])
        end += record["num_bytes"]
    return end


def _problem(record: Any, end: int) -> str | None:
    """The problem with the description of an array that begins after the first `end` bytes, or None."""
    if not isinstance(record, dict) or set(record) != _RECORD or {type(record["key"]), type(record["dtype"])} != {str}:
        return f"it is not described by {', '.join(sorted(_RECORD))}"
    sizes = [record["offset"], record["num_bytes"], record["crc32"]]
    shape = record["shape"]
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(map(_is_size, [*shape, *sizes])):
        return f"{record['key']!r} has sizes that are not integers of at least 0, or more than {_MAX_RANK} dimensions"
    if record["offset"] != end:
        return f"{record['key']!r} begins at byte {record['offset']}, but the arrays before it end at {end}"
    return None


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _neighbours(path: Path) -> str:
    names = sorted(other.parent.name for other in path.parent.glob(f"*/{MANIFEST}") if not other.parent.name.startswith("."))
    return f" In {path.parent} there are: {', '.join(names)}." if names else ""


def _write_arrays(file: Path, arrays: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    records = []
    with file.open("xb") as stream:
        for key, array in arrays.items():
            data = _as_bytes(array)
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
        flush(stream)
    return records


def _as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of `array` in C order and little-endian, without a copy if they are so already."""
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _check_bytes(path: Path, file: Any, record: dict[str, Any]) -> None:
    """Read the bytes of an array in pieces, for their checksum only."""
    file.seek(record["offset"])
    left, checksum = record["num_bytes"], 0
    while left and (piece := file.read(min(left, _PIECE))):
        left -= len(piece)
        checksum = zlib.crc32(piece, checksum)
    _require_whole(path, record, record["num_bytes"] - left, checksum)


def _require_whole(path: Path, record: dict[str, Any], found: int, checksum: int) -> None:
    key, num_bytes = record["key"], record["num_bytes"]
    if found != num_bytes:
        raise DamagedCheckpointError(f"{path} is damaged: it ends in the middle of {key!r}, {num_bytes - found} bytes too early.")
    if checksum != record["crc32"]:
        raise DamagedCheckpointError(
            f"{path} is damaged: {key!r} (bytes {record['offset']} to {record['offset'] + num_bytes}) has the checksum "
            f"{checksum}, but should have {record['crc32']}."
        )


def _read_array(path: Path, file: Any, record: dict[str, Any]) -> np.ndarray:
    key = record["key"]
    dtype = _dtype(path, record)
    num_bytes = math.prod(record["shape"]) * dtype.itemsize
    if num_bytes != record["num_bytes"]:
        raise DamagedCheckpointError(
            f"{path}: {key!r} cannot be {dtype}{record['shape']}: that has {num_bytes} bytes, but {record['num_bytes']} are stored."
        )
    file.seek(record["offset"])
    try:
        data = np.empty(record["num_bytes"], np.uint8)
    except MemoryError as error:
        raise CheckpointError(f"{path}: there is not enough memory for {key!r}, which has {record['num_bytes']} bytes.") from error
    found = file.readinto(data)
    _require_whole(path, record, found, zlib.crc32(data.data))
    if dtype == np.bool_ and data.max(initial=0) > 1:
        raise DamagedCheckpointError(f"{path} is damaged: {key!r} is of dtype bool, but has a byte that is neither 0 nor 1.")
    array = data.view(dtype.newbyteorder("<") if sys.byteorder == "big" else dtype)
    try:
        return array.astype(dtype, copy=False).reshape(record["shape"])
    except ValueError as error:  # next to a 0, other sizes may be huge, but NumPy limits them
        raise DamagedCheckpointError(f"{path}: {key!r} cannot have the shape {record['shape']} ({error}).") from error


def _dtype(path: Path, record: dict[str, Any]) -> np.dtype:
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


def is_storable(dtype: np.dtype) -> bool:
    """Return whether bytes and a dtype's name describe an array completely, unlike objects and strings."""
    try:
        return not dtype.hasobject and dtype.itemsize > 0 and np.dtype(dtype.name) == dtype.newbyteorder("=")
    except TypeError:
        return False


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(_dump(body))


def _dump(value: dict[str, Any]) -> bytes:
    """JSON in the one way in which it is written here: the same value always gives the same bytes."""
    return json.dumps(value, sort_keys=True, indent=1).encode()
