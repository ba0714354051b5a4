"""Watches a model's train function: what ``fit`` reads, and how long it waits for that.

Keras's batch hooks cannot do this: they make Keras fetch the log values of every batch, which waits for the devices, and Keras
reads the input between the two hooks.
"""

import dataclasses
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from .. import _hooks
from .._internals import JAXTrainer
from ..loops._train_function import Rank, Step, TrainFunction, train_function_of


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


_fits: weakref.WeakKeyDictionary[Watcher, Any] = weakref.WeakKeyDictionary()  # the model whose fit each one watches


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
    """Let `watcher` watch a fit of the model until it is closed, and its train function, if the model has one already."""
    _fits[watcher] = model
    if model.train_function is not None:
        train_function_of(model).add(Rank.WATCH, _Watch(watcher))


def detach(watcher: Watcher) -> None:
    """Stop `watcher` from watching. Other watchers of the same function stay. Idempotent."""
    model = _fits.pop(watcher, None)
    if model is not None and isinstance(model.train_function, TrainFunction):
        model.train_function.remove(_Watch(watcher))


def _fit(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Close the watchers of a fit that raised: Keras tells callbacks only of fits that succeed."""
    try:
        return original(model, *args, **kwargs)
    finally:
        for watcher in [watcher for watcher, watched in _fits.items() if watched is model]:
            watcher.close()


_hooks.fill(_hooks.Slot.WATCH, {(JAXTrainer, "fit"): _fit})
