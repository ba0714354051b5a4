"""Objects that save and restore their own state: iterators of datasets, and other objects with the two methods.

``state()`` returns what JSON can hold, and ``restore(state)`` goes back to it. Grain's iterators call the two ``get_state`` and
``set_state``.
"""

import base64
import dataclasses
import json
from typing import Any

from ...errors import ArgumentTypeError, CheckpointError

_METHODS = (("state", "restore"), ("get_state", "set_state"))
_BYTES = "base64"


@dataclasses.dataclass(frozen=True)
class StoredState:
    """A state that JSON can hold."""

    value: Any


def is_stateful(leaf: Any) -> bool:
    """Return whether `leaf` saves and restores its own state."""
    return not isinstance(leaf, type) and _methods(leaf) is not None


def _methods(leaf: Any) -> tuple[str, str] | None:
    kind = type(leaf)  # not the object, because reading an attribute of it can do anything
    return next((pair for pair in _METHODS if all(callable(getattr(kind, name, None)) for name in pair)), None)


class Stateful:
    """One such object, with its key."""

    def __init__(self, key: str, leaf: Any):
        self._key, self._leaf = key, leaf

    def get(self) -> StoredState:
        """Return its current state.

        Raises:
            ArgumentTypeError: If JSON cannot hold the state.
        """
        pair = _methods(self._leaf)
        assert pair is not None
        value = getattr(self._leaf, pair[0])()
        if isinstance(value, bytes):
            value = {_BYTES: base64.b64encode(value).decode()}
        try:
            return StoredState(json.loads(json.dumps(value)))  # a copy, because the next step changes the original
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(
                f"Checkpoint: {self._key!r} ({type(self._leaf).__name__}) has a state that JSON cannot hold ({error}). Its method "
                f"{pair[0]}() should return numbers, strings, None, and lists and dicts of them."
            ) from error

    def set(self, state: StoredState) -> None:
        """Go back to `state`.

        Raises:
            CheckpointError: If the object refuses it.
        """
        pair = _methods(self._leaf)
        assert pair is not None
        value = state.value
        try:
            if isinstance(value, dict) and set(value) == {_BYTES}:
                value = base64.b64decode(value[_BYTES], validate=True)
            getattr(self._leaf, pair[1])(value)
        except Exception as error:
            raise CheckpointError(
                f"{self._key!r} ({type(self._leaf).__name__}) did not accept its state from the checkpoint: "
                f"{type(error).__name__}: {error}"
            ) from error
