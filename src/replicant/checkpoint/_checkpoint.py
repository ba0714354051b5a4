"""``Checkpoint``: save objects and restore them."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, ContextError
from ..replicas._context import active_replica_context
from ..variables._recorder import current_recorder
from . import _storage
from ._chief import chiefs, meet_before_reading, write_once
from ._meta import EXTRA, read_checked
from ._numbered import next_number
from ._objects import Inventory, kind_of
from ._options import CheckpointOptions
from ._restore import Restore, RestoreStatus
from ._values import decode, encode, fetch, start_fetching
from ._writer import BackgroundWriter


class Checkpoint:
    """Objects whose values are saved and restored together.

    Args:
        objects: by name: Keras models, layers, optimizers, metrics, variables and seed generators; ``replicant.Variable``; numbers
            and arrays (NumPy or JAX); iterators over datasets, and other objects with ``state()`` and ``restore(state)`` or
            ``get_state()`` and ``set_state(state)``; dicts, lists, tuples and other pytrees of all these. The optimizer of a
            compiled model is an object of its own.

    The objects are attributes: ``checkpoint.model``. Numbers, arrays and tuples cannot change in place, so after a restore the
    attribute has their new values, and before saving assign the current ones: ``checkpoint.state = state``. Dicts and lists are
    changed in place.

    A checkpoint does not know about devices: save under one strategy, restore under another or none. A variable with one value
    per replica is saved as its aggregate, and with its copies: the same number of replicas continues with them, another number
    with the aggregate, split.

    Raises ArgumentTypeError for something that cannot be saved, ArgumentError for a name that is taken.
    Semantics: tf.train.Checkpoint; here a model or optimizer that has no variables yet is built when restored, where that is
    possible. Otherwise it gets its values when it is first called, and objects that become attributes later get theirs then.

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
    _writer: BackgroundWriter
    _restore: Restore | None

    def __init__(self, **objects: Any):
        self._objects = {}
        self._save_counter = 0
        self._writer = BackgroundWriter()
        self._restore = None
        for name, item in objects.items():
            self._track(name, item)

    @property
    def save_counter(self) -> int:
        """The number of the last checkpoint that was saved or restored; 0 before."""
        return self._save_counter

    def save(self, prefix: str | os.PathLike[str], options: CheckpointOptions | None = None) -> str:
        """Save to the folder ``prefix-n`` and return its path; n is the next number that nothing in that directory has.

        Raises CheckpointError if it cannot be written, or if the one before, written in the background, could not; nothing of it is
        left then. Raises ContextError inside ``run``, VariableError for a variable with one value per replica and no aggregation.
        """
        self._writer.wait()
        start = Path(prefix)
        number = chiefs("checkpoint number", lambda: next_number(start, self._save_counter))
        path = self._write(start.with_name(f"{start.name}-{number}"), number, options)
        self._save_counter = number
        return path

    def write(self, path: str | os.PathLike[str], options: CheckpointOptions | None = None) -> str:
        """Save to the folder `path`, which must not exist, and return it. Raises as ``save`` does."""
        self._writer.wait()
        return self._write(Path(path), self._save_counter, options)

    def sync(self) -> None:
        """Wait until what is written in the background is on the disk.

        Raises CheckpointError if it could not be written. Also done by ``save``, ``write`` and ``restore``, and at the end of the
        program. Semantics: tf.train.Checkpoint.sync.
        """
        self._writer.wait()

    def restore(self, path: str | os.PathLike[str] | None) -> RestoreStatus:
        """Give the objects the values that the checkpoint at `path` has for them.

        Args:
            path: as returned by ``save``, ``write`` or ``latest_checkpoint``; with None nothing happens.

        Returns: what did not match, with ``assert_consumed()``, ``assert_existing_objects_matched()`` and ``expect_partial()``.

        Raises CheckpointError if the checkpoint is missing or damaged, if a value has another shape or dtype than its counterpart,
        or if an optimizer cannot be built; no value has changed then. Raises ContextError inside ``run``.
        """
        status, meta, _ = self._read("restore", path)
        self._save_counter = meta.get("save_counter", self._save_counter)
        return status

    def read(self, path: str | os.PathLike[str] | None) -> RestoreStatus:
        """``restore`` of what ``write`` wrote: the number of the next ``save`` does not depend on it."""
        return self._read("read", path)[0]

    def _read(self, what: str, path: str | os.PathLike[str] | None) -> tuple[RestoreStatus, dict[str, Any], list[np.ndarray]]:
        """Also returns the manifest and the extra arrays."""
        _require_eager(what)
        self._writer.wait()
        meet_before_reading(path)
        if path is None:
            return RestoreStatus(missing=tuple(Inventory(self._objects).items)), {}, []
        manifest = read_checked(Path(path))
        meta, arrays = manifest["meta"], _storage.read_arrays(Path(path), manifest["arrays"])
        extra_arrays = [arrays.pop(f"{EXTRA}{i}") for i in range(meta["num_extra_arrays"])]
        restore = Restore(os.fspath(path), self._objects, meta["objects"], decode(meta, arrays))
        restore.begin()
        if self._restore is not None:
            self._restore.close()
        self._restore = restore
        return RestoreStatus(restore), meta, extra_arrays

    def _write(
        self,
        path: Path,
        save_counter: int,
        options: CheckpointOptions | None,
        *,
        extra: Any = None,
        extra_arrays: Sequence[np.ndarray] = (),
        then: Callable[[], None] = lambda: None,
    ) -> str:
        """`extra` goes into the manifest, `extra_arrays` beside the others; `then` is called once the checkpoint is there."""
        _require_eager("save")
        if self._restore is not None:
            self._restore.look().warn()
        inventory = Inventory(self._objects)
        start_fetching(inventory.items.values())
        values = {key: fetch(item) for key, item in inventory.items.items()}
        waiting, waiting_descriptions = ({}, {}) if self._restore is None else self._restore.waiting()
        meta, arrays = encode(values | waiting)  # what a model that was never called will get is saved as it was
        descriptions = {key: kind.describe(item, inventory) for key, item in inventory.objects.items() if (kind := kind_of(item))}
        descriptions |= waiting_descriptions
        meta |= {"save_counter": save_counter, "saved_at": time.time(), "objects": descriptions, "extra": extra or {}}
        meta["num_extra_arrays"] = len(extra_arrays)
        arrays |= {f"{EXTRA}{i}": array for i, array in enumerate(extra_arrays)}

        def write() -> None:
            _storage.write(path, meta, arrays)
            then()

        background = options is not None and options.enable_async
        write_once(functools.partial(self._writer.start, write) if background else write)
        return str(path)

    def _track(self, name: str, item: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ArgumentError(f"Checkpoint: {name!r} cannot be the name of an object, since Checkpoint uses it. Choose another.")
        Inventory({name: item})  # says now, not after the first epoch, what cannot be saved
        is_new = name not in self._objects
        self._objects[name] = item
        if self._restore is None or not self._restore.has(name):
            return
        if is_new:
            self._restore.add(name)
        else:
            self._restore.look()  # a list or a tuple that has grown, for example

    def __getattr__(self, name: str) -> Any:
        objects = self.__dict__.get("_objects", {})
        if (restore := self.__dict__.get("_restore")) is not None and name in objects:
            restore.look()
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
