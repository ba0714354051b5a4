"""The loops that models are in now: a call of ``fit``, ``evaluate``, ``predict`` or of a variant for one batch is a `LoopRun`.

Between such a call and what it needs of Replicant lies Keras's own code, which hands nothing on. So the hooks inside find the loop
that they are in as the current one of their thread.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from ...errors import ContextError
from ...strategies._strategy import Strategy
from ._same_batches import BatchesRead

_PATIENCE = 600.0  # seconds

_current: ContextVar["LoopRun | None"] = ContextVar("replicant_loop", default=None)
_outermost: dict[int, "LoopRun"] = {}  # the outermost loop of each model that has one, by the model's id
_changed = threading.Condition()


class LoopRun:
    """One loop of a model. In the ``with`` block it is the current one of the thread, and only this thread runs loops of the model.

    Args:
        model: The model.
        name: The name of its method.
        inputs: The inputs of the model, if Keras compares batches with them.

    Attributes:
        shapes: The shapes of these inputs.
        suspect: What may explain an error: what is odd about the data. None once steps have computed with it.
        builds: Whether Keras reads data only to build the model.
        workers: The strategy whose workers run the loop together, or else the one of the loop around it. None if there is none.
        batches_read: What the workers compare then.
        variables: The variables whose values the loop has, by the parts of its state.
        fit: What callbacks know of the ``fit``, a `loops/_fit_callbacks.Run`, if one of them asks.
        at_end: What is called when the loop ends, whether or not it raises.
    """

    def __init__(self, model: Any, name: str, inputs: Sequence[Any] = ()):
        self.model, self.name = model, name
        self.shapes: list[tuple[int | None, ...]] = [tuple(each.shape) for each in inputs]
        self.thread = threading.current_thread()
        self.suspect: str | None = None
        self.builds = False
        self._around = around = _current.get()
        self.workers: Strategy | None = None if around is None else around.workers
        self.batches_read: BatchesRead | None = None if around is None else around.batches_read
        self.variables: dict[str, list[Any]] = {}
        self.fit: Any = None
        self.at_end = ExitStack()

    def __enter__(self) -> Self:
        try:
            with _changed:
                other = _outermost.get(id(self.model))
                if other is None or other.thread is not self.thread:
                    self._wait()
                    _outermost[id(self.model)] = self
            _current.set(self)
        except BaseException:  # such as Ctrl-C
            self._leave()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, Exception) and self.suspect not in (None, *getattr(error, "__notes__", ())):
            error.add_note(str(self.suspect))
        try:
            self.at_end.__exit__(kind, error, traceback)
        finally:
            self._leave()

    def _leave(self) -> None:
        _current.set(self._around)
        if _outermost.get(id(self.model)) is self:
            with _changed:
                del _outermost[id(self.model)]
                _changed.notify_all()

    def _wait(self) -> None:
        """Wait until no other thread runs a loop of the model. Raise if it is `fit`, which may take as long as it likes."""
        model, deadline = self.model, time.monotonic() + _PATIENCE
        while (other := _outermost.get(id(model))) is not None:
            if other.name == "fit" or not _changed.wait(deadline - time.monotonic()):
                too_long = "" if other.name == "fit" else f", and has not ended in {_PATIENCE:g} seconds"
                raise ContextError(
                    f"{self.name} of the model {model.name!r} was called in the thread {self.thread.name!r} while its "
                    f"{other.name} runs in the thread {other.thread.name!r}{too_long}. Keras keeps the state of one loop of a "
                    f"model at a time. Call {self.name} in a callback of that loop, or on a model of this thread: copy = "
                    "keras.models.clone_model(model) once, and copy.set_weights(model.get_weights()) before each call."
                )

    @property
    def only_builds(self) -> bool:
        """Whether what Keras reads now is to build the model, and to be left for the next pass."""
        return self.builds or (self.name == "predict" and not all(layer.built for layer in self.model._flatten_layers()))


def current_loop() -> LoopRun | None:
    """Return the loop that this thread is in; the innermost if there are several."""
    return _current.get()


def loop_of(model: Any) -> LoopRun | None:
    """Return the outermost loop that a model is in, in any thread."""
    return _outermost.get(id(model))


def all_loops() -> list[LoopRun]:
    """Return the outermost loops of all models, in all threads."""
    return list(_outermost.values())


@contextmanager
def building() -> Iterator[None]:
    """Leave what Keras reads in the ``with`` block to build a model for the next pass of the loop."""
    loop = _current.get()
    if loop is None:
        yield
        return
    before, loop.builds = loop.builds, True
    try:
        yield
    finally:
        loop.builds = before
