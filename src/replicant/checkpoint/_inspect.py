"""Looks into a checkpoint without the objects that it was made from."""

import os
from typing import Any

from ..errors import CheckpointError
from ._manifest import read_checked
from .folders._locations import place_of
from .format._lazy_array import stored_arrays
from .values._values import COPIES, decode

_MAX_NAMES = 20  # in a message


def list_variables(path: str | os.PathLike[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of the values in the checkpoint at `path`, sorted by name; a Python number has the shape ().

    This is the counterpart of tf.train.list_variables.

    Raises:
        CheckpointError: If there is no checkpoint, or its manifest is damaged.

    >>> import tempfile, replicant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = replicant.Checkpoint(weights=replicant.Variable([1.0, 2.0]), step=7).save(f"{folder}/ckpt")
    ...     replicant.list_variables(path)
    [('step', ()), ('weights', (2,))]
    """
    manifest = read_checked(place_of("list_variables: path", path))
    arrays = (*manifest["arrays"], *manifest["sliced"])
    shapes = {record["key"]: tuple(record["shape"]) for record in arrays if _is_value(record["key"])}
    return sorted({**shapes, **dict.fromkeys(manifest["meta"]["numbers"], ())}.items())


def load_variable(path: str | os.PathLike[str], name: str) -> Any:
    """Read one value of the checkpoint at `path`, as a NumPy array or Python number.

    This is the counterpart of tf.train.load_variable. The other values are not read.

    Args:
        path: The path of the checkpoint.
        name: The name of the value, as ``list_variables`` returns it.

    Raises:
        CheckpointError: If there is no such checkpoint or value, or it is damaged.

    >>> import tempfile, replicant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = replicant.Checkpoint(weights=replicant.Variable([1.0, 2.0]), step=7).save(f"{folder}/ckpt")
    ...     replicant.load_variable(path, "weights"), replicant.load_variable(path, "step")
    (array([1., 2.], dtype=float32), 7)
    """
    folder = place_of("load_variable: path", path)
    manifest = read_checked(folder)
    meta = manifest["meta"]
    stored = stored_arrays(folder, manifest).get(name) if _is_value(name) else None
    if stored is not None:
        return stored.read()
    if name in meta["numbers"]:
        empty = {"random_keys": {}, "states": {}, "copies": {}}
        return decode({**empty, "numbers": {name: meta["numbers"][name]}}, {})[name]
    names = [other for other, _ in list_variables(path)]
    more = f", ... ({len(names)} in all)" if len(names) > _MAX_NAMES else ""
    raise CheckpointError(f"The checkpoint {path} has no value {name!r}. It has: {', '.join(names[:_MAX_NAMES])}{more}.")


def _is_value(key: str) -> bool:
    """Whether an array is a value of an object, not one that Replicant stores in addition."""
    return not key.endswith(COPIES) and not key.startswith(".")
