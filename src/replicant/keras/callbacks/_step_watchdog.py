"""``StepWatchdog``: a ``Watchdog`` for the steps of ``fit``."""

import os
from typing import Any, Literal

import keras

from ...runtime._watchdog import EXIT_CODE, Watchdog
from ..loops._fit_callbacks import FitCallback


class StepWatchdog(FitCallback, keras.callbacks.Callback):
    """Reports a step of ``fit`` that takes too long, and may end it. The arguments are those of ``replicant.Watchdog``.

    A step lasts from the beginning of a batch to the beginning of the next one, and includes reading the input, training and other
    callbacks. The steps of a validation are watched too. The first batch of the training and of each validation has
    `first_step_seconds`, and so does the end of an epoch, where models are saved.


    Raises:
        ArgumentError: If ``replicant.Watchdog`` refuses an argument.
        ContextError: From ``fit`` outside the main thread, with ``on_abort="raise"``.
        StepTimeoutError: From ``fit``, with ``on_abort="raise"``.

    >>> import keras, numpy as np, replicant
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> watchdog = replicant.keras.callbacks.StepWatchdog(step_seconds=300)
    >>> _ = model.fit(np.ones((8, 3)), np.ones(8), 2, verbose=0, callbacks=[watchdog])
    >>> watchdog.num_reports
    0
    """

    rank = 2
    instead = "a loop of coordinator.schedule and coordinator.join(timeout), whose timeout ends a wait"

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
        """The number of steps that were reported in the last ``fit``."""
        return self._watchdog.num_reports

    def on_train_begin(self, logs: Any = None) -> None:
        """Start watching."""
        self._watchdog.start()
        self._is_fitting = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the beginning of an epoch's input."""
        self._epoch = epoch
        self._watchdog.beat(f"beginning of epoch {epoch + 1}", first=True)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the beginning of a step."""
        self._watchdog.beat(f"epoch {self._epoch + 1}, batch {batch + 1}")

    def on_test_begin(self, logs: Any = None) -> None:
        """Note the beginning of a validation."""
        if self._is_fitting:
            self._watchdog.beat(f"beginning of the validation of epoch {self._epoch + 1}", first=True)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the beginning of a step of the validation."""
        if self._is_fitting:
            self._watchdog.beat(f"validation of epoch {self._epoch + 1}, batch {batch + 1}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the end of an epoch, where other callbacks save models."""
        self._watchdog.beat(f"end of epoch {epoch + 1}", first=True)

    def on_fit_end(self) -> None:
        """Stop watching."""
        self._is_fitting = False
        self._watchdog.stop()
