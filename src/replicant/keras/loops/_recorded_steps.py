"""Tells a profile of the steps of ``fit``, whether or not the model has a strategy."""

from collections.abc import Iterator
from typing import Any

import jax

from ...runtime import _steps
from ..data._array_batches import several
from ._train_function import Rank, Step, TrainFunction, train_function_of


def record(model: Any) -> TrainFunction:
    """Let the profile that is being recorded know of the steps of a model's train function, and return the function."""
    function = train_function_of(model)
    function.add(Rank.WATCH, _Recorded(function))
    return function


class _Recorded:
    """The link of the train function that tells the profile."""

    def __init__(self, function: TrainFunction):
        self._function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Recorded) and other._function is self._function

    def __hash__(self) -> int:
        return hash(id(self._function))

    def __call__(self, inner: Step, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        recorder = _steps.recorder
        if recorder is None:
            self._function.remove(self)
            return inner(state, iterator)
        recorder.note_begin()
        with recorder.step("fit") as step:
            logs, state = inner(state, _Timed(iterator, recorder))
            step.result = jax.tree.leaves(logs) or jax.tree.leaves(state)
        return logs, state


class _Timed:
    """An iterator over batches, whose readers wait for input."""

    def __init__(self, batches: Iterator[Any], recorder: _steps.Recorder):
        self._batches, self._recorder = batches, recorder
        if hasattr(batches, "several"):
            self.several = self._several

    def __iter__(self) -> "_Timed":
        return self

    def __next__(self) -> Any:
        with _steps.waiting_for_input(self._recorder):
            return next(self._batches)

    def _several(self, num: int) -> list[Any]:
        with _steps.waiting_for_input(self._recorder):
            return several(self._batches, num)
