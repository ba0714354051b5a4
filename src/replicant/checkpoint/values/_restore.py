"""Restores saved values: builds what does not exist yet, compares everything, and only then assigns.

What cannot be built before it is used gets its values at that time: the restore continues when its variables are made. The same
holds for variables that become part of the objects later: in a list that grows, under a new dict key, as another attribute.
"""

import atexit
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import CheckpointError
from ...variables import _recorder
from ...variables._ref import Ref
from ..folders._threads import run_all
from ..format._lazy_array import Stored
from ..workers._chief import RESTORE_AGAIN, all_read
from ._deferred_restore import Place, frontier, is_there
from ._objects import Inventory, kind_of
from ._restore_status import MAX_ROWS, differences, rows
from ._states import Stateful
from ._values import assign, assign_slices, boxes_of, describe, fits, note_slices, replaced

_live: "weakref.WeakSet[Restore]" = weakref.WeakSet()


class Restore:
    """One restore, which may take several steps until all variables exist.

    Args:
        path: The path, for messages.
        objects: The objects by name. Numbers, arrays and tuples among them are replaced by the saved ones.
        descriptions: What the kinds of objects need to know to build them.
        values: The saved values by key, or `Stored` ones, which `begin` reads.
        source: What the checkpoint is, the same on all workers.
    """

    def __init__(
        self, path: str, objects: dict[str, Any], descriptions: Mapping[str, Any], values: Mapping[str, Any], source: str = ""
    ):
        self.path = path
        self._source = source
        self.missing: tuple[str, ...] = ()
        self.unexpected: tuple[str, ...] = ()
        self.deferred: tuple[str, ...] = ()
        self.hints: tuple[str, ...] = ()  # what a message about missing values says, too
        self.never_saved: tuple[str, ...] = ()
        self.num_given = 0  # how many values the objects have got so far
        self.answered = False  # whether somebody asked what is open, or was warned
        self._is_partial = False  # whether open values are accepted
        self._objects = objects
        self._descriptions = descriptions
        self._keys = frozenset(values)
        self._values = dict(values)  # the values that were not assigned yet; the others need not stay in memory
        self._unbuilt: list[str] = []
        self._waiting: set[str] = set()  # keys of objects that will resume this restore
        self._used: set[str] = set()  # keys of objects that have resumed it; what they lack now will not come
        self._frontier: list[Place] = []  # where variables may appear later
        self._lock = threading.RLock()
        self._busy = self._began = self._failed = False

    def begin(self) -> None:
        """Assign all values that have a counterpart.

        Raises:
            CheckpointError: If an object cannot be built, or a value has another shape or dtype. Then nothing has been assigned.
                Also if slices were whole when they were checked, but cannot be read when they are assigned (see `_give_all`).
        """
        try:
            self._advance(())
        except BaseException:
            self._failed = True  # objects that were to resume it may get their values from another one
            raise
        self._began = True
        _live.add(self)
        self._watch()

    def add(self, name: str) -> None:
        """Restore the object `name`, which was added to the checkpoint only now."""
        self._advance((name,))
        self._watch()

    def look(self) -> "Restore":
        """Continue if something new exists, and return this restore."""
        self._go_on(thoroughly=True)
        return self

    def expect_partial(self) -> None:
        """Accept values without a counterpart."""
        self.answered = self._is_partial = True

    def has(self, name: str) -> bool:
        """Return whether the checkpoint holds values for an object of this name that were not assigned yet."""
        return any(_is_in(key, (name,)) for key in self._values)

    def waiting(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values that wait for an object to be built, and the descriptions of such objects, to be saved again."""
        values = {key: self._values[key] for key in self.deferred}
        return values, {key: self._descriptions[key] for key in self._unbuilt if any(_is_in(value, (key,)) for value in values)}

    def close(self) -> None:
        """Warn about what is open and end this restore, because another checkpoint is restored."""
        self.warn()
        self._stop_watching()
        self._values = {}

    def warn(self) -> None:
        """Warn about what is open, unless somebody has asked for it."""
        if self.answered or not (self.missing or self.unexpected):
            return
        self.answered = True
        warnings.warn(
            f"The checkpoint {self.path} was restored in part.{differences(self.missing, self.unexpected, self.hints)}\n"
            "If that is what you want, call .expect_partial() on what restore returns.",
            stacklevel=3,
        )

    def __del__(self) -> None:
        if _recorder.before_use is not None:  # at the end of the program, modules are empty already
            self._stop_watching()
            self.warn()

    # -- what appears later

    def _watch(self) -> None:
        """Check variables before they are used, as long as there is something to find or to report."""
        self._frontier = frontier(self._objects, self.unexpected)
        self._stop_watching()
        if self._frontier or (not self.answered and (self.missing or self.unexpected)):
            self._before_use = functools.partial(_before_use, weakref.ref(self))
            _recorder.before_use.append(self._before_use)

    _before_use: Callable[[bool], None] | None = None

    def _stop_watching(self) -> None:
        if self._before_use is not None and self._before_use in _recorder.before_use:
            _recorder.before_use.remove(self._before_use)

    def before_use(self, in_step: bool) -> None:
        """Continue, because a variable is about to be read or written, perhaps by a step."""
        self._go_on(thoroughly=in_step)
        if in_step and not self._busy:
            self.warn()
            if not self._frontier:
                self._stop_watching()

    def _go_on(self, *, thoroughly: bool) -> None:
        """Assign values to what has appeared. If `thoroughly`, also check whether objects of libraries have grown."""
        if self._busy or not (self.unexpected or self.deferred):
            return
        with self._lock:
            if any(is_there(self._objects, place, thoroughly=thoroughly) for place in self._frontier):
                self._advance(())
                self._watch()

    def _resume(self, key: str) -> None:
        """Continue, because an object that was waited for has got its variables."""
        if self._failed:
            return
        self._waiting.discard(key)
        item = Inventory(self._objects).objects.get(key)
        kind = kind_of(item)
        if kind is None or not kind.may_grow(item):
            self._used.add(key)
        self._advance(())
        self._watch()
        if any(_is_in(value, (key,)) for value in self.deferred) and key in self._waiting:
            raise CheckpointError(
                f"{key!r} ({type(item).__name__}) waits for its values from the checkpoint {self.path}, which has more values for "
                "it than the object has weights so far. This call does not build some of its layers, and until they are built, it "
                "is unknown which value belongs to which weight. Call it once in a way that builds all of its layers (for example "
                "with training=True), or remove the layers that are never used."
            )
        if not self.deferred:
            self.warn()

    def _settle_leaves(self, late: list[str]) -> None:
        """Let numbers and arrays that appeared later keep their values, which may be newer than the saved ones.

        Raises:
            CheckpointError: Unless the mismatch was accepted or reported before.
        """
        if not late or self._is_partial:
            return
        told = (
            f"The checkpoint {self.path} has values for {', '.join(map(repr, late[:MAX_ROWS]))}, which were added to a list, "
            "tuple or dict only after the restore. A variable would get its value now, but a number, an array or an iterator there "
            "may be newer than the saved one, so it keeps its value."
        )
        if not self.answered:
            raise CheckpointError(
                f"{told} Add it before the restore (with the same number of elements and the same keys), or call "
                ".expect_partial() on what restore returns."
            )
        warnings.warn(told, stacklevel=4)

    # -- one step

    def _advance(self, fresh: tuple[str, ...]) -> None:
        """Assign all values that have a counterpart now. Numbers and arrays of objects named in `fresh` are not newer."""
        self._busy = True
        try:
            self._advance_once(fresh)
        finally:
            self._busy = False

    def _advance_once(self, fresh: tuple[str, ...]) -> None:
        try:
            unbuilt = self._build()
        except CheckpointError as error:
            self._explain(error)
            raise
        inventory = Inventory(self._objects)
        items = inventory.items
        growing = tuple(key for key in unbuilt if (kind := kind_of(item := inventory.objects[key])) and kind.may_grow(item))
        waiting, unclaimed = self._claim(inventory, growing)
        deferred = [key for key in self._values if _is_in(key, growing) or (key not in items and _is_in(key, unbuilt))]
        missing = self._lacking(key for key in items if not _is_in(key, growing))
        new = [key for key in items if key in self._values and not _is_in(key, growing)]
        late = [key for key in new if self._began and not isinstance(items[key], Ref) and not _is_in(key, fresh)]
        unexpected = tuple(key for key in self._values if key not in deferred and (key not in items or key in late))
        unexpected += unclaimed
        new = [key for key in new if key not in late]
        self._check_fit({key: items[key] for key in new}, missing, unexpected)
        num_bytes = sum(value.num_bytes for value in self._values.values() if isinstance(value, Stored))
        if not self._began:
            read = functools.partial(self._read, {key: items[key] for key in new})
            all_read("read", self.path, read, num_bytes=num_bytes)
        self._settle_leaves(late)
        changing = [key for key in new if isinstance(items[key], Stateful | Ref)]
        changing.sort(key=lambda key: isinstance(items[key], Ref))  # states first, which objects can still refuse
        give = functools.partial(self._give_all, {key: items[key] for key in changing})
        give() if self._began else all_read("assigned", self.path, give, num_bytes=num_bytes, changes=True)
        for key in new:
            if isinstance(value := self._values[key], Stored):
                note_slices(items[key], f"{self._source}: {value.key}")
        given = set(new)
        leaves = inventory.with_leaves(lambda key, leaf: replaced(leaf, self._values[key]) if key in given else leaf)
        for name, old in list(self._objects.items()):
            self._objects[name] = _updated(old, leaves[name])
        for key in (*new, *late):
            del self._values[key]
        for name, item in inventory.objects.items():
            if (kind := kind_of(item)) is not None and any(_is_in(key, (name,)) for key in new):
                kind.restored(item)
        self._unbuilt = unbuilt
        self.num_given += len(new)
        self.missing, self.unexpected, self.deferred = missing, unexpected, (*deferred, *waiting)

    def _claim(self, inventory: Inventory, growing: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Add the values of the checkpoint that belong to what is there now, if their keys are not known from the beginning.

        Returns:
            The names of those that wait for objects to be built, and of those that belong to nothing.
        """
        del inventory, growing
        return (), ()

    def _lacking(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the keys that are not in the checkpoint."""
        return tuple(key for key in keys if key not in self._keys)

    def _read(self, items: Mapping[str, Any]) -> None:
        """Read every value, or check the slices of it that this process needs, which are read when they are assigned."""
        checks = []
        for key, value in self._values.items():
            if not isinstance(value, Stored):
                continue
            item = items.get(key)
            if isinstance(item, Ref) and (placement := item.cut_on()) is not None:
                checks += value.checks(boxes_of(item, placement))
            else:
                self._values[key] = value.read()
        run_all(checks)

    def _give_all(self, items: Mapping[str, Any]) -> None:
        """Assign the values of these items.

        Raises:
            DamagedCheckpointError: If slices can no longer be read, and nothing has changed.
            CheckpointError: If slices can no longer be read, or an object refuses its state. Unless it is the first one, some
                values have changed, so that nobody may pass over this checkpoint as if it were only damaged.
        """
        for number, (key, item) in enumerate(items.items()):
            try:
                self._give(item, self._values[key])
            except CheckpointError as error:
                if not number:
                    raise
                raise CheckpointError(
                    f"The checkpoint {self.path} was restored only in part: {number} of {len(items)} values have changed. "
                    f"{RESTORE_AGAIN} {error}"
                ) from error

    def _give(self, item: Any, value: Any) -> None:
        if isinstance(item, Stateful):
            item.set(value)
        elif isinstance(value, Stored):
            assign_slices(item, value, item.cut_on())
        elif isinstance(item, Ref):
            assign(item, value)

    def _build(self) -> list[str]:
        """Make what can be made, and return the keys of the objects that must be used first."""
        unbuilt: list[str] = []
        for needs_others in (False, True):
            inventory = Inventory(self._objects, waiting=unbuilt)
            for key, item in inventory.objects.items():
                kind = kind_of(item)
                if kind is None or kind.needs_others is not needs_others or key not in self._descriptions:
                    continue
                if kind.build(item, key, self._descriptions[key], inventory) or key in self._used:
                    continue
                unbuilt.append(key)
                if not needs_others and key not in self._waiting:
                    kind.when_built(item, functools.partial(self._resume, key))
                    self._waiting.add(key)
        return unbuilt

    def _explain(self, error: CheckpointError) -> None:
        """If an optimizer does not fit because its model does not, raise an error with all differences instead."""
        inventory = Inventory(self._objects)
        others = [key for key, item in inventory.objects.items() if (kind := kind_of(item)) is not None and kind.needs_others]

        def of_others(key: str) -> bool:
            return any(key.startswith(f"{other}/") for other in others)

        items = {key: item for key, item in inventory.items.items() if not of_others(key)}
        missing = tuple(key for key in items if key not in self._keys)
        unexpected = tuple(key for key in self._values if key not in items and not of_others(key))
        mismatched = self._mismatched({key: item for key, item in items.items() if key in self._values})
        if mismatched or missing or unexpected:
            raise CheckpointError(
                f"The checkpoint {self.path} does not fit the objects; nothing was restored."
                f"{rows('Other shape or dtype', mismatched)}{differences(missing, unexpected)}\n  {error}"
            ) from error

    def _mismatched(self, items: dict[str, Any]) -> list[str]:
        return [
            f"{key}: stored {describe(self._values[key])}, found {describe(item)}"
            for key, item in items.items()
            if not fits(item, self._values[key])
        ]

    def _check_fit(self, items: dict[str, Any], missing: tuple[str, ...], unexpected: tuple[str, ...]) -> None:
        mismatched = self._mismatched(items)
        if mismatched:
            raise CheckpointError(
                f"The checkpoint {self.path} does not fit the objects; nothing was restored."
                f"{rows('Other shape or dtype', mismatched)}{differences(missing, unexpected)}"
            )


def _updated(old: Any, new: Any) -> Any:
    """`new`, put in the dicts and lists of `old`, so that all who hold them see the restored values."""
    if isinstance(old, dict):
        for key in old:
            old[key] = _updated(old[key], new[key])
        return old
    if isinstance(old, list):
        old[:] = map(_updated, old, new)
        return old
    if isinstance(old, tuple):
        parts = map(_updated, old, new)
        return type(old)(*parts) if hasattr(old, "_fields") else tuple(parts)
    return new


def _is_in(key: str, names: Any) -> bool:
    """Whether `key` belongs to one of these objects or to something in it."""
    return any(key == name or key.startswith(f"{name}/") for name in names)


def _before_use(restore: "weakref.ref[Restore]", in_step: bool) -> None:
    found = restore()
    if found is not None:
        found.before_use(in_step)


@atexit.register
def _warn_at_the_end() -> None:
    for restore in list(_live):
        restore.warn()
