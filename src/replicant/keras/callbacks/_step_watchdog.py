"""``StepWatchdog``: a ``Watchdog`` for the steps of ``fit``."""

import os
from typing import Any, Literal

import keras

from ...runtime._watchdog import EXIT_CODE, Watchdog
from .._resume import FitCallback


class StepWatchdog(FitCallback, keras.callbacks.Callback):
    """Reports, and may end, a step of ``fit`` that takes too long; the arguments are those of ``replicant.Watchdog``.

    A step lasts from the beginning of a batch to the beginning of the next one: reading the input, training, and other callbacks
    are part of it. So are the steps of a validation. The first batch of the training and of each validation has
    `first_step_seconds`, as has the end of an epoch, where models are saved.

    Raises:
        ArgumentError: as ``replicant.Watchdog`` does.
        ContextError: from ``fit`` outside of the main thread, with ``on_abort="raise"``.
        StepTimeoutError: from ``fit``, with ``on_abort="raise"``.

    >>> import keras, numpy as np, replicant
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> watchdog = replicant.keras.callbacks.StepWatchdog(step_seconds=300)
    >>> _ = model.fit(np.ones((8, 3)), np.ones(8), 2, verbose=0, callbacks=[watchdog])
    >>> watchdog.num_reports
    0
    """

    rank = 2

    def __init__(
        self,
        step_seconds: float,
        *,
        first_step_seconds: float | None = None,
        abort_seconds: float | None = None,
        on_abort: Literal["exit", "raise"] = "exit",
        exit_code: int = EXIT_CODE,
        file: str | os.PathLike[str] | None = None,
    ):
        super().__init__()
        self._watchdog = Watchdog(
            step_seconds,
            first_step_seconds=first_step_seconds,
            abort_seconds=abort_seconds,
            on_abort=on_abort,
            exit_code=exit_code,
            file=file,
        )
        self._epoch = 0
        self._is_fitting = False

    @property
    def num_reports(self) -> int:
        """Steps that were reported in the last ``fit``."""
        return self._watchdog.num_reports

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to watch."""
        self._watchdog.start()
        self._is_fitting = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """The input of an epoch begins."""
        self._epoch = epoch
        self._watchdog.beat(f"beginning of epoch {epoch + 1}", first=True)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A step begins."""
        self._watchdog.beat(f"epoch {self._epoch + 1}, batch {batch + 1}")

    def on_test_begin(self, logs: Any = None) -> None:
        """A validation begins."""
        if self._is_fitting:
            self._watchdog.beat(f"beginning of the validation of epoch {self._epoch + 1}", first=True)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A step of the validation begins."""
        if self._is_fitting:
            self._watchdog.beat(f"validation of epoch {self._epoch + 1}, batch {batch + 1}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Other callbacks save what they save."""
        self._watchdog.beat(f"end of epoch {epoch + 1}", first=True)

    def on_fit_end(self) -> None:
        """Stop watching."""
        self._is_fitting = False
        self._watchdog.stop()
