"""Checkpoints of Replicant's own, as files of weights."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import CheckpointError
from .._own_values import OwnValues, is_value
from ..format._storage import write
from ..values._values import encode
from ._stored import Entry, WeightsFile


class OwnCheckpoint(WeightsFile):
    """The values of a checkpoint that a `Checkpoint` has written."""

    def __init__(self, values: OwnValues) -> None:
        self.path, self.format, self._values = values.path, "a checkpoint of Replicant", values
        self.entries = {key: Entry(key, values.shape(key), values.dtype(key)) for key in values.keys()}  # noqa: SIM118 - no dict

    def read(self, name: str) -> Any:
        return self._values.read(name)


def write_own(folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint of arrays without objects, which `list_variables` and `load_variable` read.

    Raises:
        CheckpointError: If it exists, cannot be written, or has a name that no value of a checkpoint can have.
    """
    wrong = next((name for name in arrays if not is_value(name)), None)
    if wrong is not None:
        raise CheckpointError(f"{folder}: no array of a checkpoint of Replicant can have the name {wrong!r}. Write safetensors.")
    meta, stored = encode(arrays)
    write(folder, {"save_counter": 0, "saved_at": time.time(), "num_extra_arrays": 0, "objects": {}, "extra": {}, **meta}, stored)
