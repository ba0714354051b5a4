"""How a checkpoint lies on disk: a folder with ``manifest.json`` and ``arrays.bin``, which exists wholly or not at all.

``arrays.bin`` is the arrays' bytes, one after the other, in C order and little-endian. ``manifest.json`` says what they are, and
carries a checksum of each array and of itself, so damage anywhere, to a single byte, is found before any value is used. There is
nothing in either file that could be executed.
"""

import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, DamagedCheckpointError
from ._appearing import appearing, flush, write_durably

FORMAT = "replicant-checkpoint"
VERSION = 2
MANIFEST = "manifest.json"
ARRAYS = "arrays.bin"
_PIECE = 1 << 22  # bytes that are read at once where only the checksum matters


def write(path: Path, meta: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Make the folder `path`.

    Args:
        path: must not exist; its parents are made.
        meta: anything that JSON can hold.
        arrays: of any dtype that has a name (bfloat16 and float8 too), not objects or strings.

    Raises CheckpointError if `path` exists or cannot be written; nothing of it is left then.
    """
    try:
        with appearing(path) as folder:
            records = _write_arrays(folder / ARRAYS, arrays)
            body = {"format": FORMAT, "version": VERSION, "meta": meta, "arrays": records}
            write_durably(folder / MANIFEST, _dump({**body, "checksum": _checksum(body)}))
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} could not be written ({error}). Nothing of it is left.") from error


def is_foreign(path: Path) -> bool:
    """Whether the folder `path` has a manifest that another program wrote for purposes of its own."""
    try:
        manifest = _parse(path / MANIFEST, (path / MANIFEST).read_bytes())
    except (OSError, DamagedCheckpointError):
        return False
    return _is_foreign(manifest)


def _is_foreign(manifest: dict[str, Any]) -> bool:
    return manifest.get("format") != FORMAT and "checksum" not in manifest


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The meta data and the arrays of the folder `path`; every array has memory of its own.

    Raises CheckpointError, naming the file, if anything is missing, damaged or of an unknown version.
    """
    manifest = read_manifest(path)
    return manifest["meta"], read_arrays(path, manifest["arrays"])


def read_arrays(path: Path, records: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The arrays that some records of a manifest describe; the others are not touched.

    Raises CheckpointError, naming the file, if one of them is damaged.
    """
    try:
        with (path / ARRAYS).open("rb") as file:
            return {record["key"]: _read_array(path / ARRAYS, file, record) for record in records}
    except OSError as error:
        raise DamagedCheckpointError(f"{path / ARRAYS} could not be read ({error}).") from error


def verify(path: Path) -> dict[str, Any]:
    """The meta data of the folder `path`, and the certainty that every byte of it is as it was written.

    Raises CheckpointError, naming the file, if that is not so.
    """
    manifest = read_manifest(path)
    try:
        with (path / ARRAYS).open("rb") as file:
            for record in manifest["arrays"]:
                _check_bytes(path / ARRAYS, file, record)
    except OSError as error:
        raise DamagedCheckpointError(f"{path / ARRAYS} could not be read ({error}).") from error
    return manifest["meta"]


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the folder `path`, and the certainty that its arrays are all there (not that no bit of them has changed).

    Raises CheckpointError, naming the file, if one is missing, if the manifest is damaged or the size of the arrays is not its.
    """
    file = path / MANIFEST
    text = _read_text(file)
    manifest = _parse(file, text)
    if _is_foreign(manifest):
        raise CheckpointError(
            f"{file} is not the manifest of a checkpoint: its format is {manifest.get('format')!r}, not {FORMAT!r}."
        )
    expected = manifest.pop("checksum", None)
    if expected != _checksum(manifest):
        raise DamagedCheckpointError(f"{file} is damaged: its checksum is {_checksum(manifest)}, but it says {expected!r}.")
    if text != _dump({**manifest, "checksum": expected}):
        raise DamagedCheckpointError(f"{file} is damaged: it says what it should, but is not written as it was.")
    if manifest.get("version") != VERSION:  # every version has this checksum, so the number is what was written
        raise CheckpointError(
            f"{file} has version {manifest.get('version')!r} of the checkpoint format; this Replicant reads version {VERSION}. "
            "Install the Replicant that wrote it, or a newer one."
        )
    num_bytes = sum(record["num_bytes"] for record in manifest["arrays"])
    try:
        found = (path / ARRAYS).stat().st_size
    except OSError as error:
        raise DamagedCheckpointError(f"{path / ARRAYS} is missing ({error}); it should have {num_bytes} bytes.") from error
    if found != num_bytes:
        raise DamagedCheckpointError(f"{path / ARRAYS} is damaged: it has {found} bytes, but should have {num_bytes}.")
    return manifest


def _read_text(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        kind = DamagedCheckpointError if (file.parent / ARRAYS).exists() else CheckpointError
        raise kind(f"There is no readable checkpoint at {file.parent}: {error}.{_neighbours(file.parent)}") from error


def _parse(file: Path, text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except ValueError as error:  # also what is not UTF-8
        raise DamagedCheckpointError(f"{file} is damaged: it is not JSON ({error}).") from error
    if not isinstance(manifest, dict):
        raise DamagedCheckpointError(f"{file} is damaged: it should be a JSON object, but is a {type(manifest).__name__}.")
    return manifest


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
    """The bytes of `array` in C order, little-endian; without a copy where they lie so."""
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
        raise DamagedCheckpointError(f"{path} is damaged: it ends in the midst of {key!r}, {num_bytes - found} bytes too early.")
    if checksum != record["crc32"]:
        raise DamagedCheckpointError(
            f"{path} is damaged: {key!r} (bytes {record['offset']} to {record['offset'] + num_bytes}) has the checksum "
            f"{checksum}, but should have {record['crc32']}."
        )


def _read_array(path: Path, file: Any, record: dict[str, Any]) -> np.ndarray:
    key = record["key"]
    file.seek(record["offset"])
    data = np.empty(record["num_bytes"], np.uint8)
    found = file.readinto(data)
    _require_whole(path, record, found, zlib.crc32(data.data))
    try:
        dtype = np.dtype(record["dtype"])
    except TypeError as error:
        raise CheckpointError(
            f"{path}: {key!r} has the dtype {record['dtype']!r}, which this NumPy and JAX do not know; upgrade them."
        ) from error
    array = data.view(dtype.newbyteorder("<") if sys.byteorder == "big" else dtype)
    return array.astype(dtype, copy=False).reshape(record["shape"])


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(_dump(body))


def _dump(value: dict[str, Any]) -> bytes:
    """JSON in the one way in which we write it: the same value is always the same bytes."""
    return json.dumps(value, sort_keys=True, indent=1).encode()
