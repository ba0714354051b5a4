"""Give saved values back to objects: build what is not there yet, compare everything, and only then assign.

What cannot be built before it is used gets its values then: the restore goes on when its variables come into being. The same holds
for variables that become part of the objects later: in a list that grows, under a new key of a dict, as another attribute.
"""

import atexit
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import CheckpointError
from ..variables import _recorder
from ..variables._ref import Ref
from ._late import Place, frontier, is_there
from ._objects import Inventory, kind_of
from ._states import Stateful
from ._values import assign, describe, fits, replaced

_MAX_ROWS = 20  # of a list in a message
_live: "weakref.WeakSet[Restore]" = weakref.WeakSet()


class RestoreStatus:
    """What a restore left open: values without a counterpart, on either side.

    missing: keys of the objects that the checkpoint does not have; they kept their values. unexpected: keys of the checkpoint that
    no object has yet; a variable that becomes part of the objects under such a key later gets its value then. deferred: keys whose
    variables are made when a model is first called; they get their values then.

    Unless one of the three methods was called, open ends are warned about before the next step, when the next checkpoint is saved
    or restored, or at the end of the program, whichever is first. Semantics: the status objects of tf.train.Checkpoint.restore.
    """

    def __init__(self, restore: "Restore | None" = None, missing: tuple[str, ...] = ()):
        self._restore = restore
        self._missing = missing

    @property
    def path(self) -> str | None:
        """Of the checkpoint; None if there was none."""
        return None if self._restore is None else self._restore.path

    @property
    def missing(self) -> tuple[str, ...]:
        """Keys of the objects that the checkpoint does not have."""
        return self._missing if self._restore is None else self._restore.look().missing

    @property
    def unexpected(self) -> tuple[str, ...]:
        """Keys of the checkpoint that no object has."""
        return () if self._restore is None else self._restore.look().unexpected

    @property
    def deferred(self) -> tuple[str, ...]:
        """Keys whose variables are not made yet."""
        return () if self._restore is None else self._restore.look().deferred

    def assert_consumed(self) -> "RestoreStatus":
        """Raise CheckpointError unless every value of the checkpoint was used and every value of the objects was in it."""
        return self._require(lambda restore: (restore.missing, restore.unexpected, restore.deferred))

    def assert_existing_objects_matched(self) -> "RestoreStatus":
        """Raise CheckpointError unless every value of the objects was in the checkpoint, which may hold more."""
        return self._require(lambda restore: (restore.missing, (), ()))

    def expect_partial(self) -> "RestoreStatus":
        """Say that it is fine that the two do not match. What comes later is restored all the same."""
        if self._restore is not None:
            self._restore.expect_partial()
        return self

    def _require(self, of: Callable[["Restore"], tuple[tuple[str, ...], ...]]) -> "RestoreStatus":
        if self._restore is None:
            raise CheckpointError("Nothing was restored: the path was None, as latest_checkpoint returns it where there is none.")
        missing, unexpected, deferred = of(self._restore.look())
        self._restore.answered = True
        if missing or unexpected or deferred:
            waiting = _rows("Waiting for variables that are not made yet (call the model on one batch)", deferred)
            raise CheckpointError(
                f"The checkpoint {self.path} and the objects do not match.{_differences(missing, unexpected)}{waiting}"
            )
        return self

    def __repr__(self) -> str:
        deferred = f", {len(self.deferred)} deferred" if self.deferred else ""
        return f"<RestoreStatus of {self.path}: {len(self.missing)} missing, {len(self.unexpected)} unexpected{deferred}>"


class Restore:
    """One restore, which may take several steps until all variables are there.

    Args:
        path: for messages.
        objects: by name. Numbers, arrays and tuples in it are replaced by what was saved.
        descriptions: what the kinds of objects need to know to build them.
        values: by key.
    """

    def __init__(self, path: str, objects: dict[str, Any], descriptions: Mapping[str, Any], values: Mapping[str, Any]):
        self.path = path
        self.missing: tuple[str, ...] = ()
        self.unexpected: tuple[str, ...] = ()
        self.deferred: tuple[str, ...] = ()
        self.answered = False  # whether somebody asked what is open, or was told
        self._is_partial = False  # whether it is fine that something is
        self._objects = objects
        self._descriptions = descriptions
        self._keys = frozenset(values)
        self._values = dict(values)  # those that nobody has got yet: what was given need not stay in memory
        self._unbuilt: list[str] = []
        self._waiting: set[str] = set()  # keys of objects that will resume this restore
        self._used: set[str] = set()  # keys of objects that have resumed it: what is not there now will not come
        self._frontier: list[Place] = []  # where values may come into being
        self._lock = threading.RLock()
        self._busy = self._began = False

    def begin(self) -> None:
        """Give all values that have a counterpart.

        Raises CheckpointError, before anything is assigned, if an object cannot be built or a value has another shape or dtype.
        """
        self._advance(())
        self._began = True
        _live.add(self)
        self._watch()

    def add(self, name: str) -> None:
        """Restore the object `name`, which the checkpoint has got only now."""
        self._advance((name,))
        self._watch()

    def look(self) -> "Restore":
        """Go on if something has come into being; returns itself."""
        self._go_on(thoroughly=True)
        return self

    def expect_partial(self) -> None:
        """Say that open ends are fine."""
        self.answered = self._is_partial = True

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds values for an object of this name that nobody has got yet."""
        return any(_is_in(key, (name,)) for key in self._values)

    def waiting(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The values that wait for an object to be built, and the descriptions of such objects: a checkpoint has them too."""
        values = {key: self._values[key] for key in self.deferred}
        return values, {key: self._descriptions[key] for key in self._unbuilt if any(_is_in(value, (key,)) for value in values)}

    def close(self) -> None:
        """Tell about what is open, and do not go on any more: another checkpoint is restored."""
        self.warn()
        self._stop_watching()
        self._values = {}

    def warn(self) -> None:
        """Tell about what is open, unless somebody has asked."""
        if self.answered or not (self.missing or self.unexpected):
            return
        self.answered = True
        warnings.warn(
            f"The checkpoint {self.path} was restored in part.{_differences(self.missing, self.unexpected)}\n"
            "If that is what you want, call .expect_partial() on what restore returns.",
            stacklevel=3,
        )

    def __del__(self) -> None:
        self._stop_watching()
        self.warn()

    # -- what comes later

    def _watch(self) -> None:
        """Have variables looked at before they are used, as long as there is something to look for or to tell."""
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
        """A variable is about to be read or written, maybe by a step."""
        self._go_on(thoroughly=in_step)
        if in_step and not self._busy:
            self.warn()
            if not self._frontier:
                self._stop_watching()

    def _go_on(self, *, thoroughly: bool) -> None:
        """Give what has come into being its values. `thoroughly`: also look whether objects of libraries have grown."""
        if self._busy or not (self.unexpected or self.deferred):
            return
        with self._lock:
            if any(is_there(self._objects, place, thoroughly=thoroughly) for place in self._frontier):
                self._advance(())
                self._watch()

    def _resume(self, key: str) -> None:
        """An object that was waited for has its variables."""
        self._waiting.discard(key)
        item = Inventory(self._objects).objects.get(key)
        kind = kind_of(item)
        if kind is None or not kind.may_grow(item):
            self._used.add(key)
        self._advance(())
        self._watch()
        if any(_is_in(value, (key,)) for value in self.deferred) and key in self._waiting:
            raise CheckpointError(
                f"{key!r} ({type(item).__name__}) waits for its values from the checkpoint {self.path}, of which it has more than "
                "the object has weights so far: some of its layers are not built by this call, and until they are nobody can tell "
                "which value belongs to which weight. Call it once in the way that builds all of its layers (for example with "
                "training=True), or remove the layers that are never used."
            )
        if not self.deferred:
            self.warn()

    def _settle_leaves(self, late: list[str]) -> None:
        """Numbers and arrays that came later keep their values: nobody can tell whether these are newer than the saved ones.

        Raises CheckpointError, unless it was said or told that the two do not match.
        """
        if not late or self._is_partial:
            return
        told = (
            f"The checkpoint {self.path} has values for {', '.join(map(repr, late[:_MAX_ROWS]))}, which came into a list, tuple or "
            "dict only after it was restored. A variable gets its value then, but a number, an array or an iterator there may be "
            "newer than the saved one, so it is left as it is."
        )
        if not self.answered:
            raise CheckpointError(
                f"{told} Make room for it before restore (with the same number of elements, and the same keys), or call "
                ".expect_partial() on what restore returns."
            )
        warnings.warn(told, stacklevel=4)

    # -- one step

    def _advance(self, fresh: tuple[str, ...]) -> None:
        """Give all values that have a counterpart by now. `fresh`: names of objects whose numbers and arrays are not newer."""
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
        deferred = [key for key in self._values if _is_in(key, growing) or (key not in items and _is_in(key, unbuilt))]
        missing = tuple(key for key in items if key not in self._keys and not _is_in(key, growing))
        new = [key for key in items if key in self._values and not _is_in(key, growing)]
        late = [key for key in new if self._began and not isinstance(items[key], Ref) and not _is_in(key, fresh)]
        unexpected = tuple(key for key in self._values if key not in deferred and (key not in items or key in late))
        new = [key for key in new if key not in late]
        self._check_fit({key: items[key] for key in new}, missing, unexpected)
        self._settle_leaves(late)
        for key in sorted(new, key=lambda key: isinstance(items[key], Ref)):  # objects first: they can still refuse
            self._give(items[key], self._values[key])
        given = set(new)
        leaves = inventory.with_leaves(lambda key, leaf: replaced(leaf, self._values[key]) if key in given else leaf)
        for name, old in list(self._objects.items()):
            self._objects[name] = _updated(old, leaves[name])
        for key in (*new, *late):
            del self._values[key]
        self._unbuilt = unbuilt
        self.missing, self.unexpected, self.deferred = missing, unexpected, tuple(deferred)

    def _give(self, item: Any, value: Any) -> None:
        if isinstance(item, Stateful):
            item.set(value)
        elif isinstance(item, Ref):
            assign(item, value)

    def _build(self) -> list[str]:
        """Make what can be made; returns the keys of the objects that must be used first."""
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
        """Raise with the table of all differences instead, if the optimizer does not fit because its model does not."""
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
                f"{_rows('Other shape or dtype', mismatched)}{_differences(missing, unexpected)}\n  {error}"
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
                f"{_rows('Other shape or dtype', mismatched)}{_differences(missing, unexpected)}"
            )


def _updated(old: Any, new: Any) -> Any:
    """`new`, in the dicts and lists of `old`, so that whoever holds them sees the restored values."""
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


def _differences(missing: tuple[str, ...], unexpected: tuple[str, ...]) -> str:
    return _rows("Missing in the checkpoint", missing) + _rows("In the checkpoint, but not in the objects", unexpected)


def _rows(title: str, rows: Any) -> str:
    if not rows:
        return ""
    more = [f"... and {len(rows) - _MAX_ROWS} more"] if len(rows) > _MAX_ROWS else []
    return "".join(f"\n  {row}" for row in [f"{title}:", *(f"  {row}" for row in [*rows[:_MAX_ROWS], *more])])


def _is_in(key: str, names: Any) -> bool:
    """Whether `key` is that of one of these objects or of something in it."""
    return any(key == name or key.startswith(f"{name}/") for name in names)


def _before_use(restore: "weakref.ref[Restore]", in_step: bool) -> None:
    found = restore()
    if found is not None:
        found.before_use(in_step)


@atexit.register
def _warn_at_the_end() -> None:
    for restore in list(_live):
        restore.warn()
