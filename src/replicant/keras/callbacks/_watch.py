"""Watches a model's train function: what ``fit`` reads, and how long it waits for that.

Keras's batch hooks cannot do this: they make Keras fetch the log values of every batch, which waits for the devices, and Keras
reads the input between the two hooks.
"""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from ..loops._train_function import Rank, Step, TrainFunction, train_function_of
from ..state._loop_run import loop_of


class Watcher(Protocol):
    """Something that is told about the batches of a fit."""

    def on_batch_read(self, num_examples: int, input_seconds: float) -> None:
        """Note that one batch was read."""
        ...

    def around_step(self) -> AbstractContextManager[Any]:
        """Return a context to enter around reading and training one or several batches."""
        ...

    def on_step_dispatched(self, logs: Any, state: Any) -> None:
        """Note that these batches have been given to the devices."""
        ...

    def close(self) -> None:
        """Stop watching. This runs whenever ``fit`` ends, even with an error."""
        ...


@dataclasses.dataclass(frozen=True)
class _Watch:
    """The link of the train function that tells a watcher."""

    watcher: Watcher

    def __call__(self, inner: Step, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """Take a step, and tell the watcher."""
        with self.watcher.around_step():
            logs, state = inner(state, _watched(iterator, self.watcher))
        self.watcher.on_step_dispatched(logs, state)
        return logs, state


def _watched(iterator: Iterator[Any], watcher: Watcher) -> Iterator[Any]:
    while True:
        start = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        watcher.on_batch_read(_num_rows(batch), time.perf_counter() - start)
        yield batch


def _num_rows(batch: Any) -> int:
    shapes = (getattr(leaf, "shape", ()) for leaf in keras.tree.flatten(batch))
    return next((int(shape[0]) for shape in shapes if shape), 0)


def attach(model: Any, watcher: Watcher) -> None:
    """Let `watcher` watch the train function of a model, if the model has one already, until it or the loop of the model ends."""
    if (loop := loop_of(model)) is not None:  # Keras tells callbacks only of fits that succeed
        loop.at_end.callback(watcher.close)
    if model.train_function is not None:
        train_function_of(model).add(Rank.WATCH, _Watch(watcher))


def detach(model: Any, watcher: Watcher) -> None:
    """Stop `watcher` from watching a model, if there is one. Other watchers of the same function stay. Idempotent."""
    if model is not None and isinstance(model.train_function, TrainFunction):
        model.train_function.remove(_Watch(watcher))
