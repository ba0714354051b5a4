"""``Checkpoint``: save objects and restore them."""

import os
import time
from pathlib import Path
from typing import Any

from .._context import active_replica_context
from .._state import current_recorder
from ..errors import ArgumentError, ContextError
from . import _storage
from ._numbered import next_number
from ._objects import Inventory, kind_of
from ._restore import RestoreStatus, restore_objects
from ._values import decode, encode, fetch


class Checkpoint:
    """Objects whose values are saved and restored together.

    Args:
        objects: by name: Keras models, layers, optimizers, metrics, variables and seed generators; ``replicant.Variable``; numbers
            and arrays (NumPy or JAX); dicts, lists, tuples and other pytrees of all these. The optimizer of a compiled model is an
            object of its own.

    The objects are attributes: ``checkpoint.model``. Numbers, arrays and tuples cannot change in place, so after a restore the
    attribute has their new values, and before saving assign the current ones: ``checkpoint.state = state``. Dicts and lists are
    changed in place.

    A checkpoint does not know about devices: save under one strategy, restore under another or none. A variable with one value
    per replica is saved as its aggregate and split when restored.

    Raises ArgumentTypeError for something that cannot be saved, ArgumentError for a name that is taken.
    Semantics: tf.train.Checkpoint; here a model or optimizer that has no variables yet is built when restored.

    >>> import tempfile, replicant
    >>> step = replicant.Variable(3)
    >>> checkpoint = replicant.Checkpoint(step=step, best=0.5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = checkpoint.save(f"{folder}/ckpt")
    ...     _ = step.assign(0)
    ...     status = checkpoint.restore(path)
    >>> print(step.value(), checkpoint.best, status)
    3 0.5 <RestoreStatus of ...ckpt-1: 0 missing, 0 unexpected>
    """

    _objects: dict[str, Any]
    _save_counter: int

    def __init__(self, **objects: Any):
        self._objects = {}
        self._save_counter = 0
        for name, item in objects.items():
            self._track(name, item)

    @property
    def save_counter(self) -> int:
        """The number of the last checkpoint that was saved or restored; 0 before."""
        return self._save_counter

    def save(self, prefix: str | os.PathLike[str]) -> str:
        """Save to the folder ``prefix-n`` and return its path; n is the next number that nothing in that directory has.

        Raises CheckpointError if it cannot be written; nothing of it is left then. Raises ContextError inside ``run``,
        VariableError for a variable with one value per replica and no aggregation.
        """
        start = Path(prefix)
        number = next_number(start, self._save_counter)
        path = self._write(start.with_name(f"{start.name}-{number}"), number)
        self._save_counter = number
        return path

    def write(self, path: str | os.PathLike[str]) -> str:
        """Save to the folder `path`, which must not exist, and return it. Raises as ``save`` does."""
        return self._write(Path(path), self._save_counter)

    def restore(self, path: str | os.PathLike[str] | None) -> RestoreStatus:
        """Give the objects the values that the checkpoint at `path` has for them.

        Args:
            path: as returned by ``save``, ``write`` or ``latest_checkpoint``; with None nothing happens.

        Returns: what did not match, with ``assert_consumed()``, ``assert_existing_objects_matched()`` and ``expect_partial()``.

        Raises CheckpointError if the checkpoint is missing or damaged, if a value has another shape or dtype than its counterpart,
        or if a model cannot be built; no value has changed then. Raises ContextError inside ``run``.
        """
        _require_eager("restore")
        if path is None:
            return RestoreStatus(None, tuple(Inventory(self._objects).items), ())
        meta, arrays = _storage.read(Path(path))
        self._objects, status = restore_objects(os.fspath(path), self._objects, meta["objects"], decode(meta, arrays))
        self._save_counter = meta["save_counter"]
        return status

    def _write(self, path: Path, save_counter: int) -> str:
        _require_eager("save")
        inventory = Inventory(self._objects)
        numbers_and_keys, arrays = encode({key: fetch(item) for key, item in inventory.items.items()})
        descriptions = {key: kind.describe(item, inventory) for key, item in inventory.objects.items() if (kind := kind_of(item))}
        meta = {"save_counter": save_counter, "saved_at": time.time(), "objects": descriptions, **numbers_and_keys}
        _storage.write(path, meta, arrays)
        return str(path)

    def _track(self, name: str, item: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ArgumentError(f"Checkpoint: {name!r} cannot be the name of an object, since Checkpoint uses it. Choose another.")
        Inventory({name: item})  # says now, not after the first epoch, what cannot be saved
        self._objects[name] = item

    def __getattr__(self, name: str) -> Any:
        objects = self.__dict__.get("_objects", {})
        if name not in objects:
            raise AttributeError(f"this Checkpoint has no object {name!r}; it has: {', '.join(objects) or 'none'}")
        return objects[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Checkpoint.__annotations__:
            super().__setattr__(name, value)
        else:
            self._track(name, value)


def _require_eager(what: str) -> None:
    if current_recorder() is not None or active_replica_context() is not None:
        raise ContextError(
            f"Checkpoint.{what} was called inside `strategy.run` or a compiled function, where the variables have no values yet. "
            "Call it outside, after the step."
        )
