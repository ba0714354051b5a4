"""Looks into a checkpoint of Replicant or TensorFlow without the objects that it was made from."""

import os
from typing import Any

import numpy as np

from ..errors import CheckpointError
from ._numbered import latest_checkpoint
from ._own_values import OwnValues
from .folders._locations import Place, folders_in, place_at, place_of, reaching
from .format._storage import is_own
from .tensorflow import SaverFile, TensorBundle, open_checkpoint
from .tensorflow._prefix import prefixes_in


class CheckpointReader:
    """Reads the values of one checkpoint by their names. ``load_checkpoint`` returns it.

    Args:
        source: The checkpoint.
    """

    def __init__(self, source: OwnValues | TensorBundle | SaverFile):
        self._source = source
        self._keys = dict.fromkeys(source.keys())

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Return the shape of each value by its name, as a list of sizes.

        Raises:
            CheckpointError: If the record of a value is damaged.
        """
        return {key: list(self._source.shape(key)) for key in self._keys}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype]:
        """Return the dtype of each value by its name: ``object`` for strings.

        Raises:
            CheckpointError: If nothing here can hold the values of one.
        """
        return {key: self._source.dtype(key) for key in self._keys}

    def has_tensor(self, name: str) -> bool:
        """Return whether there is a value of this name that can be read here. Variants, which are states of iterators, cannot."""
        return name in self._keys

    def get_tensor(self, name: str) -> Any:
        """Read a value, and only its bytes.

        Of TensorFlow's checkpoints, one without axes comes as a NumPy scalar, or as bytes if it is a string, as from TensorFlow's
        own reader.

        Args:
            name: The name of the value.

        Returns:
            A NumPy array in memory of its own, with bytes objects for strings; or a Python number, if that was saved.

        Raises:
            CheckpointError: If there is no such value, or it is damaged.
        """
        value = self._source.read(name)
        return value if isinstance(self._source, OwnValues) or value.ndim else value[()]


def load_checkpoint(path: str | os.PathLike[str]) -> CheckpointReader:
    """Open the checkpoint at `path`, of Replicant or TensorFlow, to read its values by their names. TensorFlow is not needed.

    This is the counterpart of tf.train.load_checkpoint, and the reader has the methods of TensorFlow's:
    ``get_variable_to_shape_map()``, ``get_variable_to_dtype_map()``, ``has_tensor(name)`` and ``get_tensor(name)``. Only the values
    that are asked for are read, even at URLs, and every byte that is read is checked.

    Args:
        path: A path or URL of a checkpoint; of a folder, for its newest; of a SavedModel, for its variables; or of a checkpoint in
            one file, as TensorFlow wrote before version 0.12. TensorFlow's are named by their prefix, as ``dir/ckpt-1``. The newest
            of a folder is the newest of Replicant's if there is one, and otherwise the one that TensorFlow's file ``checkpoint``
            names.

    Raises:
        CheckpointError: If there is no checkpoint, or it is damaged.
        ConfigurationError: If a package is missing: fsspec for URLs, or cramjam for blocks that Snappy has compressed.

    >>> import tempfile, replicant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = replicant.Checkpoint(weights=replicant.Variable([1.0, 2.0]), step=7).save(f"{folder}/ckpt")
    ...     reader = replicant.load_checkpoint(path)
    ...     reader.get_variable_to_shape_map(), reader.get_tensor("weights"), reader.has_tensor("bias")
    ({'step': [], 'weights': [2]}, array([1., 2.], dtype=float32), False)
    """
    return CheckpointReader(source_at("load_checkpoint: path", path))


def list_variables(path: str | os.PathLike[str]) -> list[tuple[str, tuple[int, ...]]]:
    """Return names and shapes of the values in the checkpoint at `path`, sorted by name; a Python number has the shape ().

    This is the counterpart of tf.train.list_variables. Variants in checkpoints of TensorFlow, which are states of iterators, are
    left out.

    Args:
        path: As for ``load_checkpoint``.

    Raises:
        CheckpointError: If there is no checkpoint, or it is damaged.

    >>> import tempfile, replicant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = replicant.Checkpoint(weights=replicant.Variable([1.0, 2.0]), step=7).save(f"{folder}/ckpt")
    ...     replicant.list_variables(path)
    [('step', ()), ('weights', (2,))]
    """
    source = source_at("list_variables: path", path)
    return sorted((key, source.shape(key)) for key in source.keys())  # noqa: SIM118 - a source is not a dict


def load_variable(path: str | os.PathLike[str], name: str) -> Any:
    """Read one value of the checkpoint at `path`, as a NumPy array or Python number.

    This is the counterpart of tf.train.load_variable. The other values are not read.

    Args:
        path: As for ``load_checkpoint``.
        name: The name of the value, as ``list_variables`` returns it.

    Raises:
        CheckpointError: If there is no such checkpoint or value, or it is damaged.

    >>> import tempfile, replicant
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = replicant.Checkpoint(weights=replicant.Variable([1.0, 2.0]), step=7).save(f"{folder}/ckpt")
    ...     replicant.load_variable(path, "weights"), replicant.load_variable(path, "step")
    (array([1., 2.], dtype=float32), 7)
    """
    return CheckpointReader(source_at("load_variable: path", path)).get_tensor(name)


def source_at(what: str, path: str | os.PathLike[str]) -> OwnValues | TensorBundle | SaverFile:
    """Open what is at a path. A message begins with `what`."""
    place = place_of(what, path)
    if is_own(place):
        return OwnValues(place)
    newest = latest_checkpoint(path) if any(map(is_own, _folders_in(place))) else None
    if newest is not None and is_own(place_at(newest)):
        return OwnValues(place_at(newest))
    found = open_checkpoint(place)
    if found is not None:
        return found
    names = prefixes_in(place) or prefixes_in(place.parent)
    if names:
        raise CheckpointError(f"There is no checkpoint at {place}. There are the prefixes: {', '.join(map(str, names))}.")
    return OwnValues(place)  # raises


def _folders_in(place: Place) -> list[Place]:
    with reaching():
        return folders_in(place)
