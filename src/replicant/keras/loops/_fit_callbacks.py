"""What Replicant's callbacks know about the ``fit`` that they are in, on any strategy.

They are called before all others and learn when ``fit`` ends. Those that ask for it get a ``Run``, which knows where the fit is.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import keras

from ._saved_position import Position

RUN = "_replicant_fit_run"
_LAST = 99  # the rank of all other callbacks


class Run:
    """One call of ``fit``, which begins at `resume` if that is set."""

    def __init__(self, model: Any, callbacks: Sequence[Any]):
        self.model = model
        self._callbacks = callbacks
        self.resume: Position | None = None
        self.logs: Any = {}  # of the last step
        self.before_saving: list[Callable[[], None]] = []  # called before the state of the fit is saved; they may raise to end it

    def callbacks(self) -> list[Any]:
        """Return all callbacks: those that the user gave, and Keras's own History."""
        history = self.model.history
        return [*self._callbacks, *([] if any(each is history for each in self._callbacks) else [history])]

    def position(self, epoch: int, num_steps: int, *, all_done: bool = False) -> Position:
        """Return the position before step `num_steps` of `epoch`."""
        raise NotImplementedError

    def check(self, resume: Position, num_epochs: int) -> None:
        """Raise CheckpointError if this fit of `num_epochs` epochs cannot continue at a position."""
        raise NotImplementedError

    def check_save_freq(self, save_freq: Any) -> None:
        """Raise ArgumentError if this fit cannot be backed up so often."""

    def close(self) -> None:
        """Let go of the model."""


def run_of(model: Any) -> Run | None:
    """Return the fit that the model is in, if a callback asked to watch it."""
    return model.__dict__.get(RUN)


class FitCallback:
    """Marks Replicant's callbacks. They are called before all others, in the order of their ranks, and learn when ``fit`` ends.

    Attributes:
        instead: What to use under a ParameterServerStrategy, if the callback follows the single steps of a fit, which workers
            take there. None if it does not.
    """

    rank = 1
    instead: str | None = None

    def on_fit_end(self) -> None:
        """Run when ``fit`` ends, whether or not it raises."""


class FirstCallback(FitCallback):
    """Marks callbacks that need a Run of the fit."""


def flat(given: Any) -> list[Any]:
    """Return the callbacks in what a fit was given."""
    return list(keras.tree.flatten(getattr(given, "callbacks", given) or []))


@contextmanager
def followed(model: Any, given: Any, watch: Callable[[Any, Sequence[Any]], AbstractContextManager[Any]]) -> Iterator[Any]:
    """Follow a fit in the ``with`` block, for those of its callbacks that are Replicant's. They learn when it ends.

    Args:
        model: The model.
        given: The callbacks that the fit was given.
        watch: ``watch(model, callbacks)`` gives the model a Run in a ``with`` block. Called if a callback needs one.

    Yields:
        The callbacks to give to the fit, with Replicant's first.
    """
    every = flat(given)
    ours = [callback for callback in every if isinstance(callback, FitCallback)]
    if not ours:
        yield given
        return
    every.sort(key=lambda callback: callback.rank if isinstance(callback, FitCallback) else _LAST)
    if isinstance(given, keras.callbacks.CallbackList):
        given.callbacks = every
    with ExitStack() as stack:
        for callback in reversed(ours):
            stack.callback(callback.on_fit_end)
        if any(isinstance(callback, FirstCallback) for callback in ours):
            stack.enter_context(watch(model, every))
        yield given if isinstance(given, keras.callbacks.CallbackList) else every


@contextmanager
def watched(run: Run) -> Iterator[None]:
    """Let a model be in a fit in the ``with`` block."""
    model = run.model
    model.__dict__[RUN] = run
    try:
        yield
    finally:
        del model.__dict__[RUN]
        model._initial_epoch = None
        run.close()
