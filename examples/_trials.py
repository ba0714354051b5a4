"""What Optuna needs to know of a training run: a value for each epoch, and a way to end the run early."""

from __future__ import annotations

from typing import Any

import keras
import optuna  # pyright: ignore[reportMissingImports]


class ReportToTrial(keras.callbacks.Callback):
    """Reports a metric of each epoch to a trial, and ends the trial if Optuna prunes it.

    The metrics of an epoch are the same on all workers, so all of them prune a trial after the same epoch.

    Args:
        trial: The trial.
        monitor: The name of the metric.

    Raises:
        optuna.TrialPruned: At the end of an epoch, out of ``fit``.
        ValueError: If there is no such metric.
    """

    def __init__(self, trial: optuna.Trial, monitor: str) -> None:
        super().__init__()
        self._trial, self._monitor = trial, monitor

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report the metric of this epoch."""
        if not logs or self._monitor not in logs:
            raise ValueError(
                f"ReportToTrial: fit reports no {self._monitor!r}. It reports {sorted(logs or {})}: choose one of these."
            )
        self._trial.report(float(logs[self._monitor]), step=epoch)
        if self._trial.should_prune():
            raise optuna.TrialPruned(f"after epoch {epoch + 1}, with {self._monitor} {float(logs[self._monitor]):.4f}")
