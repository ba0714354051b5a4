"""What Keras variables are assigned inside a function that is traced by itself, set aside until the function has ended.

Such a function is computed again for a backward pass, or once for each micro-batch. A value that it assigns exists only in its own
trace. So it becomes a result of the function, and is assigned after it.
"""

from typing import Any

import jax.numpy as jnp

from ...errors import ContextError
from ...variables import _recorder
from ...variables._recorder import current_recorder
from .. import _internals
from ._recording_scope import RecordingScope
from ._refs import ref_of_keras


class Aside(RecordingScope):
    """A scope that keeps what is assigned in it, and otherwise knows what the scope around it knows."""

    def __init__(self) -> None:
        super().__init__()
        self._outer = _internals.get_stateless_scope() if _internals.in_stateless_scope() else None
        self.asks_the_recorder = self._outer is None or isinstance(self._outer, RecordingScope)
        self._known: dict[int, Any] = {}
        self._new: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> Any:
        if id(variable) in self._new:
            return self._new[id(variable)]
        return self._around(variable)

    def _around(self, variable: Any) -> Any:
        """Return the value of a variable that the scope around this one knows; None if it knows none."""
        known = None if self._outer is None else self._outer.get_current_value(variable)
        if known is None and current_recorder() is not None and not isinstance(self._outer, RecordingScope):
            return _recorder.read(ref_of_keras(variable))
        return known

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        self._known[id(variable)], self._new[id(variable)] = variable, value

    def assigned(self) -> list[Any]:
        """Return the values that were assigned.

        Raises:
            ContextError: If a layer has added a loss, which Keras would not find outside.
        """
        if self.losses:
            raise ContextError(
                "A layer adds a loss (add_loss, or an activity regularizer) inside a function that is computed again for the "
                "backward pass (replicant.remat, keras.remat, keras.RematScope). Return what the loss is made of, and add it "
                "outside."
            )
        return self.values()

    def values(self) -> list[Any]:
        """Return the values that were assigned, even if a layer has added a loss."""
        return list(self._new.values())

    def before(self) -> list[Any]:
        """Return the values that the same variables have around this scope."""
        found = [(variable, self._around(variable)) for variable in self._known.values()]
        return [jnp.asarray(variable.value if known is None else known) for variable, known in found]

    def follow(self, other: "Aside", values: list[Any]) -> None:
        """Begin with values for the variables that were assigned in `other`."""
        self._known = dict(other._known)
        self._new = dict(zip(other._new, values, strict=True))

    def put_back(self, values: list[Any]) -> None:
        """Assign the values, as results of the function."""
        for variable, value in zip(self._known.values(), values, strict=True):
            if self._outer is None:
                variable.assign(value)
            else:
                self._outer.add_update((variable, value))
