"""``track`` and ``TrackedRun``: values of a run, for any number of trackers."""

import atexit
import math
import numbers
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
from jax.core import Tracer

from ..cluster.jax._bootstrap import is_chief
from ..errors import ArgumentError, ArgumentTypeError, ContextError
from ..replicas._own_mesh import in_a_trace
from ..replicas._values import DistributedValues, Mirrored
from ..variables._known import is_variable, value_of
from ._mlflow import MLflowTracker
from ._protocol import Row, Tracker
from ._sender import Sender
from ._tensorboard import TensorBoardTracker
from ._wandb import WandBTracker

_BY_NAME: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoardTracker, "mlflow": MLflowTracker, "wandb": WandBTracker}
_METHODS = ("begin", "write", "end")


class TrackedRun:
    """A run whose values go to trackers; made by ``replicant.track``. It is a context manager, which calls `finish`."""

    def __init__(self, trackers: tuple[Tracker, ...], config: Mapping[str, Any], max_rows: int, finish_seconds: float):
        self._trackers, self._config, self._most, self._seconds = trackers, dict(config), max_rows, finish_seconds
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._senders: list[Sender] | None = None  # made with the first row, on the chief
        self._is_finished = False
        atexit.register(self.finish)

    @property
    def records(self) -> bool:
        """Whether this process writes anything: it is the chief, and no fork of the program."""
        return is_chief() and os.getpid() == self._process

    @property
    def written(self) -> dict[str, int]:
        """The number of rows that each tracker has taken."""
        return {sender.name: sender.written for sender in self._senders or ()}

    @property
    def lost(self) -> dict[str, int]:
        """The number of rows that each tracker has not taken: it failed, was too slow, or had not enough time at the end."""
        return {sender.name: sender.lost for sender in self._senders or ()}

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Hand over the values of a step. This waits neither for trackers nor for devices.

        Args:
            values: Numbers by their names: Python's, NumPy's, or arrays, variables and mirrored values with one element.
            step: The step.

        Raises:
            ArgumentTypeError: If a name is not a string, a value not a number or different by replica, or the step not an integer.
            ArgumentError: If a value has several elements.
            ContextError: In compiled code, and after `finish`.
        """
        if in_a_trace() or any(isinstance(value, Tracer) for value in values.values()):
            raise ContextError(
                "run.log was called in compiled code (strategy.run, replicant.function or jax.jit), which runs only once as "
                "Python. Return the values from the step, and log them outside."
            )
        if isinstance(step, bool) or not isinstance(step, numbers.Integral | np.integer):
            raise ArgumentTypeError(f"run.log takes an integer as its step; got {step!r}.")
        taken = {_checked_name(name): _taken(name, value) for name, value in values.items()}
        if self._is_finished:
            raise ContextError("run.log was called after run.finish(). Log before, or call replicant.track for a new run.")
        if not self.records:
            return
        at, number = time.time(), int(step)
        for sender in self._started():
            sender.put(lambda: Row(number, {name: float(np.asarray(value).item()) for name, value in taken.items()}, at))

    def finish(self, *, failed: bool | None = None) -> None:
        """Wait until the trackers have taken everything, at most for `finish_seconds` in all, and end their runs. Idempotent.

        What a tracker has not taken is counted in `lost`, and told. The end of the program calls this.

        Args:
            failed: Whether the run counts as failed. By default it does if an error has ended the program.
        """
        with self._lock:
            if self._is_finished or os.getpid() != self._process:
                return
            self._is_finished = True
        atexit.unregister(self.finish)
        deadline = time.monotonic() + self._seconds
        has_failed = getattr(sys, "last_value", None) is not None if failed is None else failed
        for sender in self._senders or ():
            sender.finish(failed=has_failed)
        for sender in self._senders or ():
            sender.wait(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.finish(failed=kind is not None)

    def _started(self) -> list[Sender]:
        with self._lock:
            if self._senders is None:
                self._senders = [Sender(tracker, self._config, self._most) for tracker in self._trackers]
            return self._senders


def track(
    *trackers: Tracker | str, config: Mapping[str, Any] | None = None, max_rows: int = 10_000, finish_seconds: float = 30.0
) -> TrackedRun:
    """Begin a run whose values go to trackers. With several workers, only the chief writes.

    Each tracker has a thread of its own, so one that is slow, fails or hangs slows down neither training nor the others. The first
    failure of each kind is reported through ``logging``; lost rows are counted, and reported at the end.

    Args:
        trackers: ``trackers.TensorBoardTracker(...)``, ``trackers.MLflowTracker(...)``, ``trackers.WandBTracker(...)``, your own
            ``trackers.Tracker``; or ``"tensorboard"``, ``"mlflow"`` or ``"wandb"`` for one without arguments.
        config: The settings of the run, such as the learning rate.
        max_rows: The number of rows that may wait for a tracker. Further ones are lost.
        finish_seconds: The time in seconds that all trackers have at the end.

    Raises:
        ArgumentError: If there is no tracker, or one has no such name; or if `max_rows` or `finish_seconds` is not positive.
        ArgumentTypeError: If something is not a tracker.
        ConfigurationError: If a tracker's package is not installed.

    >>> import pathlib, replicant, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replicant.track(replicant.trackers.TensorBoardTracker(folder), config={"rate": 0.1}) as run:
    ...         for step in range(3):
    ...             run.log({"loss": 1 / (step + 1)}, step=step)
    ...     run.written, run.lost
    ({'TensorBoardTracker': 3}, {'TensorBoardTracker': 0})
    """
    if not trackers:
        raise ArgumentError(f"track needs a tracker: an object, or one of {', '.join(map(repr, _BY_NAME))}.")
    if isinstance(max_rows, bool) or not isinstance(max_rows, int) or max_rows < 1:
        raise ArgumentError(f"track: max_rows must be a number of rows, 1 or more; got {max_rows!r}.")
    if not isinstance(finish_seconds, int | float) or not 0 < finish_seconds < math.inf:
        raise ArgumentError(f"track: finish_seconds must be a positive number of seconds; got {finish_seconds!r}.")
    return TrackedRun(tuple(map(_tracker, trackers)), config or {}, max_rows, finish_seconds)


def _tracker(given: Any) -> Tracker:
    if isinstance(given, str):
        if given not in _BY_NAME:
            raise ArgumentError(f"track: {given!r} is not a tracker. Its name is one of {', '.join(map(repr, _BY_NAME))}.")
        return _BY_NAME[given]()
    missing = [name for name in _METHODS if not callable(getattr(given, name, None))]
    if missing or isinstance(given, type):
        what = f"is a class: write {given.__name__}(...)" if isinstance(given, type) else f"has no {missing[0]}"
        raise ArgumentTypeError(f"track: {given!r} is not a tracker, because it {what}. A tracker has {', '.join(_METHODS)}.")
    return given


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"run.log takes names of values that are strings; got {name!r}.")
    return name


def _taken(name: str, value: Any) -> Any:
    """Return a value that stays as it is while training goes on, and whose number the sender's thread may read."""
    is_kept = is_variable(value)
    value = value_of(value)
    if isinstance(value, DistributedValues):
        if not isinstance(value, Mirrored):
            raise ArgumentTypeError(
                f"run.log was given a value for {name!r} that differs by replica. Reduce it first: strategy.reduce('SUM', value)."
            )
        value = value.values[0]
    if isinstance(value, jax.Array):
        _check_shape(name, value.shape)
        if not value.is_fully_replicated:
            raise ArgumentTypeError(f"run.log was given a value for {name!r} that is spread over devices. Reduce it first.")
        own = value.addressable_data(0)
        return own.copy() if is_kept else own  # a step may give away the buffer of a variable
    if not isinstance(value, numbers.Number | np.ndarray | np.generic) or isinstance(value, complex):
        raise ArgumentTypeError(f"run.log takes numbers for {name!r}; got {value!r}.")
    array = np.array(value)
    _check_shape(name, array.shape)
    if array.dtype.kind in "OSUMmc":
        raise ArgumentTypeError(f"run.log takes numbers for {name!r}; got {value!r}.")
    return array


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if math.prod(shape) != 1:
        raise ArgumentError(f"run.log takes one number for {name!r}; got the shape {shape}. Take its mean, or log its elements.")
