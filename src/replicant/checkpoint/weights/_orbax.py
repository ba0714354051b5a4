"""Checkpoints of Orbax, which only the package orbax-checkpoint can read."""

import functools
import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...errors import CheckpointError, ConfigurationError
from ._stored import Entry, WeightsFile

_FILES = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt")


def is_orbax(folder: Path) -> bool:
    """Whether a folder is a checkpoint of Orbax, or one step of several that `CheckpointManager` of Orbax has written."""
    return any((folder / name).exists() for name in _FILES)


class OrbaxCheckpoint(WeightsFile):
    """The arrays and numbers of a checkpoint of Orbax, named by the keys of its tree, joined by slashes.

    Raises:
        CheckpointError: If Orbax cannot read it.
        ConfigurationError: If the package orbax-checkpoint is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.format = str(folder), "a checkpoint of Orbax"
        try:
            orbax: Any = importlib.import_module("orbax.checkpoint")
        except ImportError as error:
            raise ConfigurationError(
                f"{str(folder)!r} is a checkpoint of Orbax. To read it, run pip install orbax-checkpoint; or restore it where it "
                "was written, and save it with replicant.Checkpoint or as safetensors."
            ) from error
        self._folder = folder / "default" if (folder / "default").is_dir() else folder  # a step of its CheckpointManager
        self._orbax, self._checkpointer = orbax, orbax.PyTreeCheckpointer()
        metadata = self._asked(lambda: self._checkpointer.metadata(self._folder.absolute())).item_metadata
        if metadata is None:
            raise CheckpointError(f"{self.path} is damaged: Orbax does not find out what is in it.")
        self._tree = metadata.tree
        self.entries = {name: self._entry(name, leaf) for name, leaf in self._named(self._tree).items()}
        self._merged = _merged(self._tree)

    def read(self, name: str) -> np.ndarray:
        self.entry(name)
        if name in self._merged:
            raise CheckpointError(
                f"{self.path}: {' and '.join(map(repr, self._merged[name]))} are one array there: Orbax keeps both under the same "
                "name, in which dots part the keys, so the values of all but one are lost. Give them names without dots where the "
                "checkpoint is written."
            )
        return np.asarray(self._all[name])

    @functools.cached_property
    def _all(self) -> dict[str, Any]:
        """All values: Orbax reads a tree as a whole."""
        wanted = jax.tree.map(lambda _: self._orbax.RestoreArgs(restore_type=np.ndarray), self._tree)
        return self._named(self._asked(lambda: self._checkpointer.restore(self._folder.absolute(), restore_args=wanted)))

    def _named(self, tree: Any) -> dict[str, Any]:
        """The leaves by their keys, joined by slashes."""
        named: dict[str, Any] = {}
        for keys, leaf in _leaves(tree):
            name = "/".join(keys)
            if name in named:
                raise CheckpointError(
                    f"{self.path} has two arrays of the name {name!r} if keys are joined by slashes, because a key has a slash in "
                    "it. Restore it with Orbax, and save it with other keys."
                )
            named[name] = leaf
        return named

    def _entry(self, name: str, leaf: Any) -> Entry:
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is None or dtype is None:
            raise CheckpointError(f"{self.path}: {name!r} is not an array but {leaf!r:.100}, which is not read.")
        return Entry(name, tuple(shape), np.dtype(dtype))

    def _asked(self, read: Any) -> Any:
        try:
            return read()
        except Exception as error:  # Orbax has no class for what is wrong with a file
            raise CheckpointError(f"{self.path}: Orbax cannot read it: {type(error).__name__}: {str(error)[:500]}") from error


def _leaves(tree: Any) -> list[tuple[tuple[str, ...], Any]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(tuple(str(getattr(key, "key", getattr(key, "idx", key))) for key in path), leaf) for path, leaf in leaves]


def _merged(tree: Any) -> dict[str, list[str]]:
    """For each array that Orbax does not tell from others, the names of all of them."""
    by_file: dict[str, list[str]] = {}
    for keys, _ in _leaves(tree):
        by_file.setdefault(".".join(keys), []).append("/".join(keys))
    return {name: names for names in by_file.values() if len(names) > 1 for name in names}
