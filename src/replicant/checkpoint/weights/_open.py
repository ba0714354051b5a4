"""Opens a file of weights as what it is. Its first bytes decide, not its name."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..._whole_file import open_regular
from ...errors import CheckpointError
from .._inspect import source_at
from .._own_values import OwnValues
from ..folders._locations import place_of
from ..tensorflow._prefix import is_prefix
from . import _hdf5, _keras_archive
from ._orbax import OrbaxCheckpoint, is_orbax
from ._own import OwnCheckpoint
from ._safetensors import SafetensorsFile
from ._stored import WeightsFile
from ._tensorflow import TensorFlowCheckpoint

_KINDS = (
    "a checkpoint of Replicant, TensorFlow or Orbax, a SavedModel, a .keras, .weights.h5 or .h5 file of Keras, or a file of "
    "safetensors"
)


def open_weights(what: str, path: str | os.PathLike[str]) -> WeightsFile:
    """Open a file, folder or prefix with weights. Close it, or use it in a ``with`` statement.

    Args:
        what: What messages about the path begin with.
        path: A path on this machine, or the URL of a checkpoint of Replicant or TensorFlow.

    Raises:
        CheckpointError: If there is nothing, or nothing that is known, or if it is damaged.
        ConfigurationError: If a package that reads it is not installed.
    """
    place = place_of(what, path)
    if isinstance(place, Path) and (opened := _opened_file(place)) is not None:
        return opened
    try:
        found = source_at(what, path)
    except CheckpointError as error:
        raise CheckpointError(f"{error} Weights can be in {_KINDS}.") if str(error).startswith("There is no ") else error from None
    return OwnCheckpoint(found) if isinstance(found, OwnValues) else TensorFlowCheckpoint(found)


def _opened_file(path: Path) -> WeightsFile | None:
    """Open a file, or a folder of Orbax; None if it is something else."""
    if path.is_dir():
        return OrbaxCheckpoint(path) if is_orbax(path) else None
    if not path.exists():
        return None
    try:
        file = open_regular(path)
        head = file.read(9)
        file.seek(0)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    reader: Callable[..., Any] | None = {_hdf5.MAGIC: _hdf5.Hdf5File}.get(head[:8]) or (
        _keras_archive.open_archive if head.startswith(_keras_archive.MAGIC) else None
    )
    if reader is not None:
        return reader(path, file)
    file.close()
    if path.suffix == ".safetensors" or _is_safetensors(head, path.stat().st_size):
        return SafetensorsFile(path)
    if not is_prefix(path):
        raise CheckpointError(f"There is no file of weights at {path}. Weights can be in {_KINDS}.")
    return None


def _is_safetensors(head: bytes, size: int) -> bool:
    return len(head) == 9 and head[8:] == b"{" and struct.unpack("<Q", head[:8])[0] + 8 <= size
