"""``PreemptionHandler``: backs up ``fit`` and ends the program when it is asked to leave, without losing a step."""

import os
from typing import Any

import numpy as np

from ...checkpoint import TerminationConfig
from ...checkpoint.policy._termination import Termination
from ._backup import BackupAndRestore


class PreemptionHandler(BackupAndRestore):
    """A ``BackupAndRestore`` that also backs up and ends the program when it is asked to leave, by SIGTERM or otherwise.

    The current step ends first. A validation is interrupted, and runs again after the restart. A second SIGTERM or Ctrl-C ends the
    program at once. When ``fit`` ends, SIGTERM gets its previous effect back.

    Args:
        backup_dir: As for ``BackupAndRestore``.
        save_freq: When to make further backups, as for ``BackupAndRestore``; False for none.
        delete_checkpoint: As for ``BackupAndRestore``.
        termination_config: A ``TerminationConfig``: what asks the program to leave, how long saving may take, and the exit code.

    Raises:
        ArgumentError: If an argument is not as described.
        CheckpointError: From ``fit``, as for ``BackupAndRestore``.
        ContextError: From ``fit`` outside the main thread.
        SystemExit: From ``fit``, with the exit code, once everything is saved.

    Semantics: ``keras.callbacks.BackupAndRestore(save_before_preemption=True)`` of TensorFlow.

    >>> import keras, numpy as np, os, replicant, signal, tempfile
    >>> class Terminated(keras.callbacks.Callback):
    ...     def __init__(self, last_batch):
    ...         super().__init__()
    ...         self.last_batch = last_batch
    ...     def on_train_batch_end(self, batch, logs=None):
    ...         print("step", batch)
    ...         if batch == self.last_batch:
    ...             os.kill(os.getpid(), signal.SIGTERM)
    >>> def fit(folder, last_batch=None):
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    ...     handler = replicant.keras.callbacks.PreemptionHandler(folder)
    ...     model.fit(np.ones((8, 3)), np.ones(8), batch_size=2, verbose=0, callbacks=[handler, Terminated(last_batch)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         fit(os.path.join(folder, "backup"), last_batch=1)
    ...     except SystemExit as error:
    ...         print("exit code", error.code)
    ...     fit(os.path.join(folder, "backup"))
    step 0
    step 1
    exit code 143
    step 2
    step 3
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: int | str | bool = False,
        delete_checkpoint: bool = True,
        termination_config: TerminationConfig | None = None,
    ):
        super().__init__(backup_dir, save_freq, delete_checkpoint)
        self._config = termination_config or TerminationConfig()
        self._termination = Termination(self._config)
        self._metrics_before_test: list[np.ndarray] = []
        self._is_fitting = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the newest backup, and watch for requests to leave."""
        super().on_train_begin(logs)
        self._termination = Termination(self._config)
        self._termination.start()
        self._is_fitting = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Do what ``BackupAndRestore`` does, then leave if asked to."""
        super().on_epoch_begin(epoch, logs)
        self._leave_if_asked()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Do what ``BackupAndRestore`` does, then leave if asked to."""
        super().on_train_batch_begin(batch, logs)
        self._leave_if_asked()

    def on_test_begin(self, logs: Any = None) -> None:
        """Remember the metrics of the epoch, whose variables the validation reuses."""
        if self._is_fitting:
            self._metrics_before_test = [np.array(variable.value) for variable in self._fitted.metrics_variables]
            self._leave_if_asked(all_done=True)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Leave if asked to."""
        if self._is_fitting:
            self._leave_if_asked(all_done=True)

    def on_fit_end(self) -> None:
        """Stop watching for requests."""
        self._is_fitting = False
        self._termination.stop()
        super().on_fit_end()

    def _leave_if_asked(self, *, all_done: bool = False) -> None:
        if not self._termination.leaves_now():
            return
        self.save(all_done=all_done, metrics=self._metrics_before_test if all_done else None)
        self.sync()
        self._termination.leave()
