"""Look into a checkpoint without the objects that it was made of."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ._meta import read_checked
from ._storage import read_arrays
from ._values import COPIES, decode

_MAX_NAMES = 20  # in a message


def list_variables(path: str | os.PathLike[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the values in the checkpoint at `path`, sorted by name; a Python number has the shape ().

    Raises CheckpointError if there is none, or its manifest is damaged. Semantics: tf.train.list_variables.

    >>> import tempfile, replicant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = replicant.Checkpoint(weights=replicant.Variable([1.0, 2.0]), step=7).save(f"{folder}/ckpt")
    ...     replicant.list_variables(path)
    [('step', ()), ('weights', (2,))]
    """
    manifest = read_checked(Path(path))
    shapes = {record["key"]: tuple(record["shape"]) for record in manifest["arrays"] if _is_value(record["key"])}
    return sorted({**shapes, **dict.fromkeys(manifest["meta"]["numbers"], ())}.items())


def load_variable(path: str | os.PathLike[str], name: str) -> Any:
    """One value of the checkpoint at `path`, as NumPy array or Python number; the others are not read.

    Args:
        path: of the checkpoint.
        name: as ``list_variables`` tells it.

    Raises CheckpointError if there is no such checkpoint or value, or if it is damaged. Semantics: tf.train.load_variable.

    >>> import tempfile, replicant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = replicant.Checkpoint(weights=replicant.Variable([1.0, 2.0]), step=7).save(f"{folder}/ckpt")
    ...     replicant.load_variable(path, "weights"), replicant.load_variable(path, "step")
    (array([1., 2.], dtype=float32), 7)
    """
    manifest = read_checked(Path(path))
    meta = manifest["meta"]
    records = [record for record in manifest["arrays"] if record["key"] == name and _is_value(name)]
    if records:
        array: np.ndarray = read_arrays(Path(path), records)[name]
        return array
    if name in meta["numbers"]:
        empty = {"random_keys": {}, "states": {}, "copies": {}}
        return decode({**empty, "numbers": {name: meta["numbers"][name]}}, {})[name]
    names = [other for other, _ in list_variables(path)]
    more = f", ... ({len(names)} in all)" if len(names) > _MAX_NAMES else ""
    raise CheckpointError(f"The checkpoint {path} has no value {name!r}. It has: {', '.join(names[:_MAX_NAMES])}{more}.")


def _is_value(key: str) -> bool:
    """Whether an array is a value of an object, and not what Replicant keeps beside it."""
    return not key.endswith(COPIES) and not key.startswith(".")
