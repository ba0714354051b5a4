"""A model's train function, watched: what ``fit`` consumes, and how long it waits for it.

Keras's batch hooks cannot be used for this. A callback that has one makes Keras fetch every batch's log values, which waits for the
devices; and the input is read between the two hooks, not around them.
"""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from .._train_function import Rank, Step, TrainFunction, train_function_of


class Watcher(Protocol):
    """Told about the batches of a fit."""

    def on_batch_read(self, num_examples: int, input_seconds: float) -> None:
        """One batch was read."""
        ...

    def around_step(self) -> AbstractContextManager[Any]:
        """One or several batches are about to be read and trained on; entered around that."""
        ...

    def on_step_dispatched(self, logs: Any, state: Any) -> None:
        """They have been given to the devices."""
        ...


@dataclasses.dataclass(frozen=True)
class _Watch:
    """The link that tells a watcher."""

    watcher: Watcher

    def __call__(self, inner: Step, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        """What the watched function returns."""
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
    """Let `watcher` watch the model's train function, if it has one yet."""
    if model.train_function is not None:
        train_function_of(model).put(Rank.WATCH, _Watch(watcher))


def detach(model: Any, watcher: Watcher) -> None:
    """The opposite of `attach`. Others that watch the same function stay."""
    if isinstance(model.train_function, TrainFunction):
        model.train_function.take(_Watch(watcher))
