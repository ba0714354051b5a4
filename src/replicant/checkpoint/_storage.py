"""How a checkpoint lies on disk: a folder with ``manifest.json`` and ``arrays.bin``, which exists wholly or not at all.

``arrays.bin`` is the arrays' bytes, one after the other, in C order and little-endian. ``manifest.json`` says what they are, and
carries a checksum of each array and of itself, so damage anywhere is found before any value is used.
"""

import json
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError

FORMAT = "replicant-checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
ARRAYS = "arrays.bin"


def write(path: Path, meta: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Make the folder `path`.

    Args:
        path: must not exist; its parents are made.
        meta: anything that JSON can hold.
        arrays: of any dtype that has a name (bfloat16 and float8 too), not objects or strings.

    Raises CheckpointError if `path` exists or cannot be written; nothing of it is left then.
    """
    try:
        with _appearing(path) as folder:
            records = _write_arrays(folder / ARRAYS, arrays)
            body = {"format": FORMAT, "version": VERSION, "meta": meta, "arrays": records}
            text = json.dumps({**body, "checksum": _checksum(body)}, indent=1)
            _write_durably(folder / MANIFEST, text.encode())
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} could not be written ({error}). Nothing of it is left.") from error


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The meta data and the arrays of the folder `path`; every array has memory of its own.

    Raises CheckpointError, naming the file, if anything is missing, damaged or of an unknown version.
    """
    manifest = read_manifest(path)
    arrays = {}
    try:
        with (path / ARRAYS).open("rb") as file:
            for record in manifest["arrays"]:
                arrays[record["key"]] = _read_array(path / ARRAYS, file, record)
    except OSError as error:
        raise CheckpointError(f"{path / ARRAYS} could not be read ({error}).") from error
    return manifest["meta"], arrays


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the folder `path`, and the certainty that its arrays are all there (not that no bit of them has changed).

    Raises CheckpointError, naming the file, if one is missing, if the manifest is damaged or the size of the arrays is not its.
    """
    file = path / MANIFEST
    manifest = _parse(file)
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{file} is not the manifest of a checkpoint: its format is {manifest.get('format')!r}, not {FORMAT!r}."
        )
    if manifest.get("version") != VERSION:
        raise CheckpointError(
            f"{file} has version {manifest.get('version')!r} of the checkpoint format; this Replicant reads version {VERSION}. "
            "Install the Replicant that wrote it, or a newer one."
        )
    expected = manifest.pop("checksum", None)
    if expected != _checksum(manifest):
        raise CheckpointError(f"{file} is damaged: its checksum is {_checksum(manifest)}, but it says {expected!r}.")
    num_bytes = sum(record["num_bytes"] for record in manifest["arrays"])
    try:
        found = (path / ARRAYS).stat().st_size
    except OSError as error:
        raise CheckpointError(f"{path / ARRAYS} is missing ({error}); it should have {num_bytes} bytes.") from error
    if found != num_bytes:
        raise CheckpointError(f"{path / ARRAYS} is damaged: it has {found} bytes, but should have {num_bytes}.")
    return manifest


def _parse(file: Path) -> dict[str, Any]:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"There is no readable checkpoint at {file.parent}: {error}.{_neighbours(file.parent)}") from error
    try:
        manifest = json.loads(text)
    except ValueError as error:  # also what is not UTF-8
        raise CheckpointError(f"{file} is damaged: it is not JSON ({error}).") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{file} is damaged: it should be a JSON object, but is a {type(manifest).__name__}.")
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
        _flush(stream)
    return records


def _as_bytes(array: np.ndarray) -> memoryview:
    """The bytes of `array` in C order, little-endian; without a copy where they lie so."""
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _read_array(path: Path, file: Any, record: dict[str, Any]) -> np.ndarray:
    key, num_bytes = record["key"], record["num_bytes"]
    file.seek(record["offset"])
    data = bytearray(file.read(num_bytes))  # writable, and its own memory
    if zlib.crc32(data) != record["crc32"]:
        raise CheckpointError(
            f"{path} is damaged: {key!r} (bytes {record['offset']} to {record['offset'] + num_bytes}) has the checksum "
            f"{zlib.crc32(data)}, but should have {record['crc32']}."
        )
    try:
        dtype = np.dtype(record["dtype"])
    except TypeError as error:
        raise CheckpointError(
            f"{path}: {key!r} has the dtype {record['dtype']!r}, which this NumPy and JAX do not know; upgrade them."
        ) from error
    array = np.frombuffer(data, np.uint8).view(dtype.newbyteorder("<") if sys.byteorder == "big" else dtype)
    return array.astype(dtype, copy=False).reshape(record["shape"])


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` at the end, at one stroke; after an error it is gone."""
    if os.path.lexists(path):
        raise CheckpointError(
            f"{path} exists already, and a checkpoint is never overwritten: choose another path, or delete it first."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
    folder.mkdir()
    try:
        yield folder
        _flush_folder(folder)
        folder.rename(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _flush_folder(path.parent)


def _write_durably(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        _flush(stream)


def _flush(stream: Any) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
