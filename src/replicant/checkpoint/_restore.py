"""Give saved values back to objects: build what is not there yet, compare everything, and only then assign.

What cannot be built before it is used gets its values then: the restore goes on when its variables come into being.
"""

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from .._state import Ref
from ..errors import CheckpointError
from ._objects import Inventory, kind_of
from ._states import Stateful
from ._values import assign, describe, fits, replaced

_MAX_ROWS = 20  # of a list in a message


class RestoreStatus:
    """What a restore left open: values without a counterpart, on either side.

    missing: keys of the objects that the checkpoint does not have; they kept their values. unexpected: keys of the checkpoint that
    no object has; their values were not used. deferred: keys whose variables are not there yet; they get their values when they
    are made. Unless one of the three methods was called, a status with open ends warns when it is dropped. Semantics: the status
    objects of tf.train.Checkpoint.restore.
    """

    def __init__(self, path: str | None, missing: tuple[str, ...] = (), unexpected: tuple[str, ...] = ()):
        self.path = path
        self.missing = missing
        self.unexpected = unexpected
        self.deferred: tuple[str, ...] = ()
        self._answered = False

    def assert_consumed(self) -> "RestoreStatus":
        """Raise CheckpointError unless every value of the checkpoint was used and every value of the objects was in it."""
        return self._require(self.missing, self.unexpected, self.deferred)

    def assert_existing_objects_matched(self) -> "RestoreStatus":
        """Raise CheckpointError unless every value of the objects was in the checkpoint, which may hold more."""
        return self._require(self.missing, (), ())

    def expect_partial(self) -> "RestoreStatus":
        """Say that it is fine that the two do not match."""
        self._answered = True
        return self

    def warn(self) -> None:
        """Tell about what is open, unless somebody has asked."""
        if self.path is None or self._answered or not (self.missing or self.unexpected):
            return
        self._answered = True
        warnings.warn(
            f"The checkpoint {self.path} was restored in part.{_differences(self.missing, self.unexpected)}\n"
            "If that is what you want, call .expect_partial() on what restore returns.",
            stacklevel=3,
        )

    def _require(self, missing: tuple[str, ...], unexpected: tuple[str, ...], deferred: tuple[str, ...]) -> "RestoreStatus":
        self._answered = True
        if self.path is None:
            raise CheckpointError("Nothing was restored: the path was None, as latest_checkpoint returns it where there is none.")
        if missing or unexpected or deferred:
            waiting = _rows("Waiting for variables that are not made yet (call the model on one batch)", deferred)
            raise CheckpointError(
                f"The checkpoint {self.path} and the objects do not match.{_differences(missing, unexpected)}{waiting}"
            )
        return self

    def __repr__(self) -> str:
        deferred = f", {len(self.deferred)} deferred" if self.deferred else ""
        return f"<RestoreStatus of {self.path}: {len(self.missing)} missing, {len(self.unexpected)} unexpected{deferred}>"

    def __del__(self) -> None:
        if not self.deferred:  # else the restore itself warns, when it is complete
            self.warn()


class Restore:
    """One restore, which may take several steps until all variables are there.

    Args:
        path: for messages.
        objects: by name.
        descriptions: what the kinds of objects need to know to build them.
        values: by key.

    Raises CheckpointError, before anything is assigned, if an object cannot be built or a value has another shape or dtype.
    """

    def __init__(self, path: str, objects: dict[str, Any], descriptions: Mapping[str, Any], values: Mapping[str, Any]):
        self.status = RestoreStatus(path)
        self._objects = objects
        self._descriptions = descriptions
        self._keys = frozenset(values)
        self._values = dict(values)  # those that nobody has got yet: what was given need not stay in memory
        self._waiting: set[str] = set()  # keys of objects that will resume this restore
        self._used: set[str] = set()  # keys of objects that have resumed it: what is not there now will not come

    def advance(self) -> dict[str, Any]:
        """Give all values that have a counterpart by now; returns the objects, as tuples, numbers and arrays are replaced."""
        try:
            unbuilt = self._build()
        except CheckpointError as error:
            self._explain(error)
            raise
        inventory = Inventory(self._objects)
        items = inventory.items
        deferred = [key for key in self._values if key not in items and any(key.startswith(f"{other}/") for other in unbuilt)]
        missing = tuple(key for key in items if key not in self._keys)
        unexpected = tuple(key for key in self._values if key not in items and key not in deferred)
        new = [key for key in items if key in self._values]
        self._check_fit({key: items[key] for key in new}, missing, unexpected)
        for key in sorted(new, key=lambda key: isinstance(items[key], Ref)):  # objects first: they can still refuse
            self._give(items[key], self._values[key])
        fresh = set(new)
        leaves = inventory.with_leaves(lambda key, leaf: replaced(leaf, self._values[key]) if key in fresh else leaf)
        self._objects = {name: _updated(old, leaves[name]) for name, old in self._objects.items()}
        for key in new:
            del self._values[key]
        self.status.missing, self.status.unexpected, self.status.deferred = missing, unexpected, tuple(deferred)
        return self._objects

    def add(self, name: str, item: Any) -> Any:
        """Restore an object that the checkpoint got only now; returns it."""
        self._objects = {**self._objects, name: item}
        return self.advance()[name]

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds values for an object of this name that nobody has got yet."""
        return any(key == name or key.startswith(f"{name}/") for key in self._values)

    def _give(self, item: Any, value: Any) -> None:
        if isinstance(item, Stateful):
            item.set(value)
        elif isinstance(item, Ref):
            assign(item, value)

    def _resume(self, key: str) -> None:
        """An object that was waited for has its variables."""
        self._used.add(key)
        self.advance()
        if not self.status.deferred:
            self.status.warn()

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
                f"The checkpoint {self.status.path} does not fit the objects; nothing was restored."
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
                f"The checkpoint {self.status.path} does not fit the objects; nothing was restored."
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
