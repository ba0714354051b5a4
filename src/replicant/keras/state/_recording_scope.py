"""Keras's scope for functional code, which asks the current recorder for values."""

from typing import Any

import keras

from ...variables import _recorder
from ...variables._recorder import current_recorder
from ._refs import ref_of_keras


class RecordingScope(keras.StatelessScope):
    """The scope around every trace, in which variables are read and written through the current recorder."""

    asks_the_recorder = True

    def __init__(self) -> None:
        super().__init__(collect_losses=True)

    def get_current_value(self, variable: Any) -> Any:
        recorder = current_recorder()
        return None if recorder is None else _recorder.read(ref_of_keras(variable))

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        recorder = current_recorder()
        assert recorder is not None, "a RecordingScope is only entered around traces"
        recorder.write(ref_of_keras(variable), value)
