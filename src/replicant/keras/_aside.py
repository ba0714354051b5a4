"""What Keras variables are assigned inside a function that is computed again, set aside until the function has ended.

A value that such a function assigns exists only in its own trace. So it becomes a result of the function, and is assigned after it.
"""

from typing import Any

from ..errors import ContextError
from ..variables import _recorder
from ..variables._recorder import current_recorder
from . import _internals
from ._recording_scope import RecordingScope
from ._refs import ref_of_keras


class Aside(RecordingScope):
    """A scope that keeps what is assigned in it, and otherwise knows what the scope around it knows."""

    def __init__(self) -> None:
        super().__init__()
        self._outer = _internals.get_stateless_scope() if _internals.in_stateless_scope() else None
        self.asks_the_recorder = self._outer is None or isinstance(self._outer, RecordingScope)
        self._variables: dict[int, Any] = {}
        self._values: dict[int, Any] = {}

    def get_current_value(self, variable: Any) -> Any:
        if id(variable) in self._values:
            return self._values[id(variable)]
        known = None if self._outer is None else self._outer.get_current_value(variable)
        if known is None and current_recorder() is not None and not isinstance(self._outer, RecordingScope):
            return _recorder.read(ref_of_keras(variable))
        return known

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        self._variables[id(variable)], self._values[id(variable)] = variable, value

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
        return list(self._values.values())

    def put_back(self, values: list[Any]) -> None:
        """Assign the values, as results of the function."""
        for variable, value in zip(self._variables.values(), values, strict=True):
            if self._outer is None:
                variable.assign(value)
            else:
                self._outer.add_update((variable, value))
