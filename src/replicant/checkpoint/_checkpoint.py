"""``Checkpoint``: saves objects and restores them."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..cluster.jax import _bootstrap
from ..cluster.meeting._lone import warn_before_saving
from ..cluster.wire import _supervisor
from ..errors import ArgumentError, ContextError
from ..replicas._context import active_replica_context
from ..variables._recorder import current_recorder
from ._manifest import EXTRA, read_checked
from ._numbered import next_number
from ._options import CheckpointOptions
from .folders._locations import Place, draft_name, place_at, place_of
from .format import _storage
from .format._lazy_array import Stored, stored_arrays
from .format._parts import Parts
from .format._writer import BackgroundWriter
from .tensorflow.restoring import GraphRestore, Opened, opened_at
from .values._objects import Inventory, kind_of
from .values._restore import Restore
from .values._restore_status import RestoreStatus
from .values._values import COPIES, Saves, decode, encode, fetched, sliced, start_fetching
from .workers._chief import all_read, chiefs, meet_before_reading, write_once
from .workers._collective_save import Together


class Checkpoint(Saves):
    """Objects whose values are saved and restored together.

    Args:
        objects: The objects by name: Keras models, layers, optimizers, metrics, variables and seed generators;
            ``replicant.Variable``; numbers and arrays (NumPy or JAX); iterators over datasets, and other objects with ``state()``
            and ``restore(state)`` or ``get_state()`` and ``set_state(state)``; dicts, lists, tuples and other pytrees of all these.
            Pass the optimizer of a compiled model as an object of its own.

    The objects are attributes: ``checkpoint.model``. Dicts and lists are changed in place. Numbers, arrays and tuples cannot be, so
    after a restore the attribute has the new value; before saving, assign the current one: ``checkpoint.state = state``.

    A checkpoint does not know about devices: save under one strategy, and restore under another or none. A variable with one value
    per replica is saved as its aggregate and as its copies. The same number of replicas continues with the copies; another number
    continues with the aggregate, which is split.

    ``restore`` and ``read`` take TensorFlow's checkpoints, too, without TensorFlow. Pass the objects under the names that they had
    in tf.train.Checkpoint, and a model that was its root as ``root=model``.

    The semantics are those of tf.train.Checkpoint, except that a model or optimizer that has no variables yet is built by the
    restore, if possible. Otherwise it gets its values when it is first called. Objects that become attributes later get theirs
    then.

    Raises:
        ArgumentTypeError: If an object cannot be saved.
        ArgumentError: If a name is taken.

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
    _exchanges: str | None  # the name of those of the last checkpoint that the workers wrote together

    def __init__(self, **objects: Any):
        self._objects = {}
        self._save_counter = 0
        self._writer = BackgroundWriter()
        self._restore = None
        self._exchanges = None
        for name, item in objects.items():
            self._track(name, item)

    @property
    def save_counter(self) -> int:
        """The number of the last checkpoint that was saved or restored, or 0 if there is none."""
        return self._save_counter

    def save(self, file_prefix: str | os.PathLike[str], options: CheckpointOptions | None = None) -> str:
        """Save to the folder ``file_prefix-n`` and return its path; n is the next unused number in that directory.

        Raises:
            CheckpointError: If the checkpoint, or the one before it in the background, cannot be written; none of it is used.
            ContextError: If it is called inside ``run``.
            VariableError: If a variable has one value per replica but no aggregation.
        """
        self._writer.wait()
        start = place_of("Checkpoint.save: file_prefix", file_prefix)
        number = chiefs("checkpoint number", lambda: next_number(start, self._save_counter))
        path = self._write(start.with_name(f"{start.name}-{number}"), number, options)
        self._save_counter = number
        return path

    def write(self, file_prefix: str | os.PathLike[str], options: CheckpointOptions | None = None) -> str:
        """Save to the folder `file_prefix`, which must not exist, and return it. It raises the same errors as ``save``."""
        path = place_of("Checkpoint.write: file_prefix", file_prefix)
        self._writer.wait()
        return self._write(path, self._save_counter, options)

    def sync(self) -> None:
        """Wait until the background write is on the disk, as tf.train.Checkpoint.sync does.

        ``save``, ``write``, ``restore`` and the end of the program do it too.

        Raises:
            CheckpointError: If the checkpoint could not be written.
        """
        self._writer.wait()

    def restore(self, save_path: str | os.PathLike[str] | None, *, by_order: bool = False) -> RestoreStatus:
        """Restore the objects' values from the checkpoint at `save_path`.

        Args:
            save_path: A path that ``save``, ``write`` or ``latest_checkpoint`` returned, or that of a checkpoint of TensorFlow:
                its prefix, such as ``"model_dir/ckpt-4"``. With None, nothing happens.
            by_order: Whether the variables of an optimizer in a checkpoint of TensorFlow may be matched by their order with those
                of the optimizer here, where nothing else says whose they are. It has no effect on a checkpoint of Replicant.

        Returns:
            The status, which holds what did not match, with ``assert_consumed()``, ``assert_existing_objects_matched()``,
            ``assert_nontrivial_match()`` and ``expect_partial()``.

        Raises:
            CheckpointError: If the checkpoint is missing or damaged, if the shape or dtype of a value differs, if an optimizer
                cannot be built, or if a checkpoint of TensorFlow has nothing for these objects. Then no value has changed.
                Variables in slices are read twice, to be checked and to be assigned (those of TensorFlow once): if they cannot be
                read the second time, the message says that some values have changed. Then restore again.
            ContextError: If it is called inside ``run``.
        """
        status, meta, _ = self._read("restore", save_path, by_order=by_order)
        self._save_counter = meta.get("save_counter", self._save_counter)
        return status

    def read(self, save_path: str | os.PathLike[str] | None, *, by_order: bool = False) -> RestoreStatus:
        """Restore what ``write`` wrote: like ``restore``, but without an effect on the number of the next ``save``."""
        return self._read("read", save_path, by_order=by_order)[0]

    def _read(
        self, what: str, path: str | os.PathLike[str] | None, *, by_order: bool = False
    ) -> tuple[RestoreStatus, dict[str, Any], list[np.ndarray]]:
        """Also returns the manifest and the extra arrays."""
        _require_eager(what)
        self._writer.wait()
        folder = None if path is None else place_of(f"Checkpoint.{what}: save_path", path)
        meet_before_reading(path)
        if path is None or folder is None:
            return RestoreStatus(missing=tuple(Inventory(self._objects).items)), {}, []
        opened = all_read("opened", path, lambda: opened_at(folder) or _opened(folder))
        if isinstance(opened, Opened):
            restore = GraphRestore(opened, self._objects, by_order=by_order)
            meta, extra_arrays = restore.meta, []
        else:
            meta, values, extra_arrays, source = opened
            restore = Restore(os.fspath(path), self._objects, meta["objects"], values, source)
        restore.begin()
        if self._restore is not None:
            self._restore.close()
        self._restore = restore
        return RestoreStatus(restore), meta, extra_arrays

    def _write(
        self,
        path: Place,
        save_counter: int,
        options: CheckpointOptions | None,
        *,
        extra: Any = None,
        extra_arrays: Sequence[np.ndarray] = (),
        then: Callable[[], None] = lambda: None,
    ) -> str:
        """Write a checkpoint. The manifest also holds `extra`; `then` is called once the checkpoint is there."""
        _require_eager("save")
        if _bootstrap.world() is None:
            warn_before_saving()
        told = _supervisor.saving(str(path))
        if self._restore is not None:
            self._restore.look().warn()
        inventory = Inventory(self._objects)
        background = options is not None and options.enable_async
        in_slices = sliced(inventory.items)
        start_fetching(item for key, item in inventory.items.items() if key not in in_slices)
        values = fetched(inventory.items, in_slices)
        waiting, waiting_descriptions = ({}, {}) if self._restore is None else self._restore.waiting()
        meta, arrays = encode(values | waiting)  # values that wait for a model's first call are saved unchanged
        descriptions = {key: kind.describe(item, inventory) for key, item in inventory.objects.items() if (kind := kind_of(item))}
        descriptions |= waiting_descriptions
        meta |= {"save_counter": save_counter, "saved_at": time.time(), "objects": descriptions, "extra": extra or {}}
        meta["num_extra_arrays"] = len(extra_arrays)
        arrays |= {f"{EXTRA}{i}": array for i, array in enumerate(extra_arrays)}
        parts = Parts(in_slices, fetch=background) if in_slices else None

        def written() -> None:
            then()
            told()

        self._start(path, meta, arrays, parts, written, background=background)
        return str(path)

    def _start(
        self, path: Place, meta: dict[str, Any], arrays: Any, parts: Parts | None, then: Callable[[], None], *, background: bool
    ) -> None:
        """Write, or begin to write: the chief alone, or all workers if variables lie in slices on all of them."""
        world = _bootstrap.world()
        if parts is None or world is None:

            def write() -> None:
                _storage.write(path, meta, arrays, parts)
                then()

            if background:
                write_once(functools.partial(self._writer.start, write))
            else:
                write_once(write, sum(array.nbytes for array in arrays.values()))
            return
        together = Together(world, path, place_at(chiefs("checkpoint folder", lambda: str(draft_name(path)))))
        before, self._exchanges = self._exchanges, together.name
        if before is not None and world.is_chief:
            world.exchange.forget(before)

        def write_together() -> None:
            together.write(meta, arrays, parts)
            if world.is_chief:
                then()

        self._writer.start(write_together) if background else write_together()

    def _track(self, name: str, item: Any) -> None:
        if name.startswith("_") or hasattr(type(self), name):
            raise ArgumentError(
                f"Checkpoint: {name!r} cannot be the name of an object, because Checkpoint uses it. Choose another name."
            )
        Inventory({name: item})  # reports what cannot be saved now, not after the first epoch
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


def _opened(path: Place) -> tuple[dict[str, Any], dict[str, Any], list[np.ndarray], str]:
    """Return the metadata of a checkpoint, its values, most of which are not read yet, extra arrays, and a text that names it."""
    manifest = read_checked(path)
    meta, stored = manifest["meta"], stored_arrays(path, manifest)
    extra_arrays = [stored.pop(f"{EXTRA}{i}").read() for i in range(meta["num_extra_arrays"])]
    now = {*meta["random_keys"], *meta["copies"], *(key + COPIES for key in meta["copies"])}
    arrays: dict[str, np.ndarray | Stored] = {key: each.read() if key in now else each for key, each in stored.items()}
    return meta, decode(meta, arrays), extra_arrays, f"{path} of {meta['saved_at']}"


def _require_eager(what: str) -> None:
    if current_recorder() is not None or active_replica_context() is not None:
        raise ContextError(
            f"Checkpoint.{what} was called inside `strategy.run` or a compiled function, where the variables have no values yet. "
            "Call it outside, after the step."
        )
