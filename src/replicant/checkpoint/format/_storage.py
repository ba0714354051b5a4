"""A checkpoint on disk: a folder with ``manifest.json`` and ``arrays.bin``, which exists completely or not at all.

``arrays.bin`` holds the bytes of the arrays, one after the other, in C order and little-endian. If variables lie in slices, there
are also parts, ``slices-0.bin`` and so on (``_parts.py``), and the version is 3 instead of 2. ``manifest.json`` describes them, and
carries a checksum of each array and of itself, so damage to any byte is found before a value is used. Nothing in these files
could be executed. The checksums find damage, not forgery, so everything in the manifest is checked before it is relied on, and
reading needs no more memory than the files have bytes.
"""

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import CheckpointError, DamagedCheckpointError
from ...storage._path import RemotePath
from ..folders._atomic_at_store import MANIFEST, Draft, is_folder_name, publish
from ..folders._locations import Place, appearing, created, is_damage, reaching
from ..folders._threads import run_all
from ._arrays_file import ARRAYS, write_arrays
from ._files import is_size, open_file
from ._lazy_array import files_of, stored_arrays
from ._parts import Parts, check_parts

FORMAT = "replicant-checkpoint"
VERSIONS = (2, 3, 4)  # without and with slices, and with files in a folder that the manifest names
_MAX_MANIFEST = 1 << 30  # bytes; ten thousand variables need two million
_MAX_RANK = 64  # of a NumPy array
_RECORD = {"key", "dtype", "shape", "offset", "num_bytes", "crc32"}


def write(path: Place, meta: dict[str, Any], arrays: Mapping[str, np.ndarray], parts: Parts | None = None) -> None:
    """Write a checkpoint to the new folder `path`.

    Args:
        path: The folder, which must not exist; its parents are created.
        meta: Anything that JSON can hold.
        arrays: Arrays of any dtype that has a name (bfloat16 and float8 too), but not of objects or strings.
        parts: The variables in slices, if there are any. This process has all of them.

    Raises:
        CheckpointError: If `path` exists or cannot be written; then none of it is used.
    """
    with telling_what_failed(path), appearing(path) as folder:
        fill(folder, meta, arrays, {} if parts is None else parts.records(parts.write(folder, "")))


@contextlib.contextmanager
def telling_what_failed(path: Place) -> Iterator[None]:
    """Turn errors of the file system into errors that name the checkpoint."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} could not be written ({error}). None of it is used.") from error


def fill(folder: Place, meta: dict[str, Any], arrays: Mapping[str, np.ndarray], sliced: Mapping[str, Any]) -> None:
    """Write everything but the parts, and the manifest last. `sliced` is what it says about the parts, which are complete."""
    records = write_arrays(folder / ARRAYS, arrays)
    body = {"format": FORMAT, "version": VERSIONS[1 if sliced else 0], "meta": meta, "arrays": records, **sliced}
    if isinstance(folder, Draft):
        body = {**body, "version": VERSIONS[2], "folder": folder.name, "parts": [], "sliced": [], **sliced}
        publish(folder, _dump({**body, "checksum": _checksum(body)}))
        return
    with created(folder / MANIFEST) as stream:
        stream.write(_dump({**body, "checksum": _checksum(body)}))


def is_own(path: Place) -> bool:
    """Return whether there is a checkpoint of Replicant at `path`, whole or not."""
    with reaching():
        return (path / MANIFEST).exists() or (path / ARRAYS).exists()


def is_foreign(path: Place) -> bool:
    """Return whether the folder `path` has a manifest that another program wrote for its own purposes."""
    try:
        manifest = _parse(path / MANIFEST, _read_bytes(path / MANIFEST))
    except (OSError, DamagedCheckpointError):
        return False
    return _is_foreign(manifest)


def _is_foreign(manifest: dict[str, Any]) -> bool:
    return manifest.get("format") != FORMAT and "checksum" not in manifest


def read(path: Place) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the metadata and the arrays of the folder `path`; every array has its own memory.

    Raises:
        CheckpointError: If anything is missing, damaged or of an unknown version. The message names the file.
    """
    manifest = read_manifest(path)
    return manifest["meta"], {key: array.read() for key, array in stored_arrays(path, manifest).items()}


def verify(path: Place) -> dict[str, Any]:
    """Check every byte of the folder `path`, and return its metadata.

    Raises:
        CheckpointError: If anything is missing or damaged. The message names the file.
    """
    return verified_manifest(path)["meta"]


def verified_manifest(path: Place) -> dict[str, Any]:
    """Check every byte of the folder `path`, and return its manifest.

    Raises:
        CheckpointError: If anything is missing or damaged. The message names the file.
    """
    manifest = read_manifest(path)
    for array in stored_arrays(path, manifest).values():
        run_all(array.checks([array.everything]))
    return manifest


def read_manifest(path: Place) -> dict[str, Any]:
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
    if manifest.get("version") not in VERSIONS:  # every version has this checksum, so the number is the one that was written
        raise CheckpointError(
            f"{file} has version {manifest.get('version')!r} of the checkpoint format; this Replicant reads versions 2 to 4. "
            "Install the Replicant that wrote it, or a newer one."
        )
    if manifest["version"] == VERSIONS[2] and not is_folder_name(manifest.get("folder")):
        raise DamagedCheckpointError(f"{file} is damaged: it does not name the folder with its files.")
    if manifest["version"] != VERSIONS[2]:
        manifest.pop("folder", None)
    num_bytes, folder = _check_records(file, manifest), files_of(path, manifest)
    _require_arrays(folder / ARRAYS, num_bytes)
    if manifest["version"] == VERSIONS[0]:
        return {**manifest, "parts": [], "sliced": []}
    check_parts(file, folder, manifest)
    return manifest


def _require_arrays(file: Place, num_bytes: int) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        if not is_damage(error):
            raise CheckpointError(str(error)) from error
        raise DamagedCheckpointError(f"{file} is missing ({error}); it should have {num_bytes} bytes.") from error
    if size != num_bytes:
        raise DamagedCheckpointError(f"{file} is damaged: it has {size} bytes, but should have {num_bytes}.")


def _read_text(file: Place) -> bytes:
    try:
        return _read_bytes(file)
    except OSError as error:
        if not is_damage(error):
            raise CheckpointError(str(error)) from error
        with reaching():
            kind = DamagedCheckpointError if (file.parent / ARRAYS).exists() else CheckpointError
        raise kind(f"There is no readable checkpoint at {file.parent}: {error}.{_neighbours(file.parent)}") from error


def _read_bytes(file: Place) -> bytes:
    with open_file(file) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        if size > _MAX_MANIFEST:
            raise DamagedCheckpointError(f"{file} is damaged: it has {size} bytes, but a manifest has at most {_MAX_MANIFEST}.")
        return stream.read(size)  # reading n bytes takes the memory of n, whatever the file has


def _parse(file: Place, text: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except ValueError as error:  # also if it is not UTF-8
        raise DamagedCheckpointError(f"{file} is damaged: it is not JSON ({error}).") from error
    except RecursionError as error:
        raise DamagedCheckpointError(f"{file} is damaged: its values are nested too deeply.") from error
    if not isinstance(manifest, dict):
        raise DamagedCheckpointError(f"{file} is damaged: it should be a JSON object, but is a {type(manifest).__name__}.")
    return manifest


def _check_records(file: Place, manifest: dict[str, Any]) -> int:
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
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(map(is_size, [*shape, *sizes])):
        return f"{record['key']!r} has sizes that are not integers of at least 0, or more than {_MAX_RANK} dimensions"
    if record["offset"] != end:
        return f"{record['key']!r} begins at byte {record['offset']}, but the arrays before it end at {end}"
    return None


def _neighbours(path: Place) -> str:
    if isinstance(path, RemotePath):
        return ""
    names = sorted(other.parent.name for other in path.parent.glob(f"*/{MANIFEST}") if not other.parent.name.startswith("."))
    return f" In {path.parent} there are: {', '.join(names)}." if names else ""


def _checksum(body: dict[str, Any]) -> int:
    return zlib.crc32(_dump(body))


def _dump(value: dict[str, Any]) -> bytes:
    """JSON in the one way in which it is written here: the same value always gives the same bytes."""
    return json.dumps(value, sort_keys=True, indent=1).encode()
