"""Give saved values back to objects: build what is not there yet, compare everything, and only then assign."""

import warnings
from collections.abc import Mapping
from typing import Any

from .._state import Ref
from ..errors import CheckpointError
from ._objects import Inventory, kind_of
from ._values import assign, describe, fits, replaced

_MAX_ROWS = 20  # of a list in a message


class RestoreStatus:
    """What a restore left open: values without a counterpart, on either side.

    missing: keys of the objects that the checkpoint does not have; they kept their values. unexpected: keys of the checkpoint that
    no object has; their values were not used. Unless one of the three methods was called, a status with open ends warns when it
    is dropped. Semantics: the status objects of tf.train.Checkpoint.restore.
    """

    def __init__(self, path: str | None, missing: tuple[str, ...], unexpected: tuple[str, ...]):
        self.path = path
        self.missing = missing
        self.unexpected = unexpected
        self._answered = path is None or not (missing or unexpected)

    def assert_consumed(self) -> "RestoreStatus":
        """Raise CheckpointError unless every value of the checkpoint was used and every value of the objects was in it."""
        return self._require(self.missing, self.unexpected)

    def assert_existing_objects_matched(self) -> "RestoreStatus":
        """Raise CheckpointError unless every value of the objects was in the checkpoint, which may hold more."""
        return self._require(self.missing, ())

    def expect_partial(self) -> "RestoreStatus":
        """Say that it is fine that the two do not match."""
        self._answered = True
        return self

    def _require(self, missing: tuple[str, ...], unexpected: tuple[str, ...]) -> "RestoreStatus":
        self._answered = True
        if self.path is None:
            raise CheckpointError("Nothing was restored: the path was None, as latest_checkpoint returns it where there is none.")
        if missing or unexpected:
            raise CheckpointError(f"The checkpoint {self.path} and the objects do not match.{_differences(missing, unexpected)}")
        return self

    def __repr__(self) -> str:
        return f"<RestoreStatus of {self.path}: {len(self.missing)} missing, {len(self.unexpected)} unexpected>"

    def __del__(self) -> None:
        if not self._answered:
            warnings.warn(
                f"The checkpoint {self.path} was restored in part.{_differences(self.missing, self.unexpected)}\n"
                "If that is what you want, call .expect_partial() on what restore returns.",
                stacklevel=2,
            )


def restore_objects(
    path: str, objects: dict[str, Any], descriptions: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[dict[str, Any], RestoreStatus]:
    """Give `values` to `objects`; also returns the objects, since tuples, numbers and arrays cannot change in place.

    Raises CheckpointError, before anything is assigned, if an object cannot be built or a value has another shape or dtype.
    """
    _build(objects, descriptions)
    inventory = Inventory(objects)
    items = inventory.items
    missing = tuple(key for key in items if key not in values)
    unexpected = tuple(key for key in values if key not in items)
    mismatched = [
        f"{key}: stored {describe(values[key])}, found {describe(item)}"
        for key, item in items.items()
        if key in values and not fits(item, values[key])
    ]
    if mismatched:
        raise CheckpointError(
            f"The checkpoint {path} does not fit the objects; nothing was restored."
            f"{_rows('Other shape or dtype', mismatched)}{_differences(missing, unexpected)}"
        )
    for key, item in items.items():
        if isinstance(item, Ref) and key in values:
            assign(item, values[key])
    new = inventory.with_leaves(lambda key, leaf: replaced(leaf, values[key]) if key in values else leaf)
    return {name: _updated(old, new[name]) for name, old in objects.items()}, RestoreStatus(path, missing, unexpected)


def _build(objects: dict[str, Any], descriptions: Mapping[str, Any]) -> None:
    for needs_others in (False, True):
        inventory = Inventory(objects)
        for key, item in inventory.objects.items():
            kind = kind_of(item)
            if kind is not None and kind.needs_others is needs_others and key in descriptions:
                kind.build(item, key, descriptions[key], inventory)


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
