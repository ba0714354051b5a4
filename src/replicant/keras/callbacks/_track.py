"""``Track``: sends what ``fit`` does to the trackers of ``replicant.track``."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from ...errors import ArgumentTypeError
from ...trackers._run import TrackedRun
from ._tensorboard import _batches_between, _iterations, _learning_rate
from ._watch import attach, detach


class Track(keras.callbacks.Callback):
    """Sends the values of ``fit`` to the trackers of a run, which ``replicant.track`` has begun.

    After every epoch these are the metrics (``loss``, ``val_loss``, ...) and ``learning_rate``, and every `update_freq` batches the
    metrics so far, as ``batch_loss`` and so on. The step of all of them is the number of batches that the optimizer has seen. The
    callback waits neither for trackers nor, within an epoch, for devices. It does not finish the run, so several fits may follow.

    Args:
        run: The run.
        update_freq: ``"batch"``, or a number of batches; ``"epoch"`` to send no values of batches.

    Raises:
        ArgumentError: If `update_freq` is something else.
        ArgumentTypeError: If `run` is not a run.

    >>> import keras, numpy as np, replicant, tempfile
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replicant.track(replicant.trackers.TensorBoardTracker(folder)) as run:
    ...         callback = replicant.keras.callbacks.Track(run)
    ...         _ = model.fit(np.ones((8, 3)), np.ones(8), epochs=2, verbose=0, callbacks=[callback])
    ...     run.written
    {'TensorBoardTracker': 2}
    """

    def __init__(self, run: TrackedRun, update_freq: int | str = "epoch"):
        super().__init__()
        if not isinstance(run, TrackedRun):
            raise ArgumentTypeError(f"callbacks.Track takes a run; got {run!r}. Write Track(replicant.track(...)).")
        self._run, self._update_freq = run, _batches_between(update_freq)
        self._first_step = self._num_batches = self._marked = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Start counting batches."""
        model: Any = self.model
        model.jax_state_sync()
        self._first_step = _iterations(model) * (getattr(model.optimizer, "gradient_accumulation_steps", None) or 1)
        self._num_batches = self._marked = 0
        if self._update_freq:
            attach(model, self)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Send the values of the epoch."""
        model: Any = self.model
        model.jax_state_sync()
        step = _iterations(model) * (getattr(model.optimizer, "gradient_accumulation_steps", None) or 1)
        self._run.log(dict(_values(logs or {})) | _learning_rate(model), step)

    def on_train_end(self, logs: Any = None) -> None:
        """Stop counting."""
        self.close()

    def close(self) -> None:
        """Stop watching the fit. This runs whenever ``fit`` ends, even with an error."""
        detach(self._model, self)

    # -- calls of the watched train function

    def on_batch_read(self, num_examples: int, input_seconds: float) -> None:
        """Count a batch that was read."""
        self._num_batches += 1

    def around_step(self) -> AbstractContextManager[Any]:
        """Return a context to enter around the next batches."""
        return contextlib.nullcontext()

    def on_step_dispatched(self, logs: Any, state: Any) -> None:
        """Send the values of batches, which the devices may not have worked out yet."""
        if self._num_batches // self._update_freq > self._marked // self._update_freq:
            self._marked = self._num_batches
            values = {f"batch_{name}": value for name, value in _values(logs)}
            self._run.log(values, self._first_step + self._num_batches)


def _values(logs: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of logs, which may be nested. The elements of an array are numbered."""
    for name, value in (logs if isinstance(logs, dict) else {}).items():
        if isinstance(value, dict):
            yield from _values(value)
        elif np.size(value) == 1:
            yield name, value
        else:
            yield from ((f"{name}/{i}", float(element)) for i, element in enumerate(np.asarray(value).ravel()))
