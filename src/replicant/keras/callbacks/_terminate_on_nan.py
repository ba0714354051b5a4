"""``TerminateOnNaN``: stops when a loss is NaN or infinite, or skips the batch, or rolls back."""

import warnings
from typing import Any, Literal

import keras
import numpy as np

from ...errors import ArgumentError, NonFiniteError
from ..loops._fit_callbacks import FitCallback, run_of
from ..loops._nan_guard import Switch, Verdict, switch_of
from ._backup import BackupAndRestore

Policy = Literal["stop", "skip", "roll_back"]
_BEHIND = 2  # executions that may be in flight while the verdict of an earlier one is read


class TerminateOnNaN(FitCallback, keras.callbacks.Callback):
    """Watches every training step of ``fit`` for NaN and infinity, and keeps them out of the model.

    A batch is bad if its loss is not finite, or if its step would write a value that is not finite into a weight, a statistic or
    the optimizer. A bad batch changes nothing: no weight, optimizer slot, step count, metric or random seed. The compiled step
    decides this. Without the callback, nothing is computed for it.

    With ``steps_per_execution > 1``, ``"stop"`` and ``"roll_back"`` also leave out the batches that follow the bad one in its
    execution. The attributes ``num_skipped`` and ``num_roll_backs`` count what happened in the last ``fit``.

    Args:
        policy: What to do after a bad batch. ``"stop"`` raises NonFiniteError, which names the epoch and the batch; the model is as
            it was before that batch. ``"skip"`` warns and continues as if the data did not have the batch. ``"roll_back"`` warns,
            restores model, optimizer and metrics from the newest backup of the ``BackupAndRestore`` among the callbacks, and
            continues with the batch after the bad one, as if the data did not have what came after the backup. It waits for every
            step.
        max_skipped_in_a_row: The number of consecutive bad batches to skip. One more stops the training.
        max_roll_backs: The number of times to roll back in one ``fit``. The next bad batch stops the training.

    Raises:
        ArgumentError: If the policy is unknown or a number is negative. From ``fit``, if ``"roll_back"`` has no
            ``BackupAndRestore``, if there are two of these callbacks, if the ``train_step`` returns no ``"loss"``, or if ``fit``
            does not use it.
        NonFiniteError: From ``fit``, as described. ``on_train_end`` is not called then, so backups stay.

    Semantics: ``keras.callbacks.TerminateOnNaN(raise_error=True)``, which checks after the update and leaves NaN in the weights.

    >>> import keras, numpy as np, replicant, warnings
    >>> rows = np.ones((8, 3))
    >>> rows[5] = np.nan
    >>> model = keras.Sequential([keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> try:
    ...     model.fit(rows, np.ones(8), 2, shuffle=False, verbose=0, callbacks=[replicant.keras.callbacks.TerminateOnNaN()])
    ... except replicant.errors.NonFiniteError as error:
    ...     print(str(error)[:50])
    The loss became nan in epoch 1, batch 3 (step 3 of
    >>> skip = replicant.keras.callbacks.TerminateOnNaN("skip")
    >>> with warnings.catch_warnings(action="ignore"):
    ...     _ = model.fit(rows, np.ones(8), 2, shuffle=False, verbose=0, callbacks=[skip])
    >>> skip.num_skipped, bool(np.isfinite(model.get_weights()[0]).all())
    (1, True)
    """

    rank = 0
    instead = "keras.callbacks.TerminateOnNaN(), which ends fit after an epoch whose loss is NaN"

    def __init__(self, policy: Policy = "stop", *, max_skipped_in_a_row: int = 10, max_roll_backs: int = 3):
        super().__init__()
        if policy not in ("stop", "skip", "roll_back"):
            raise ArgumentError(f"TerminateOnNaN: policy must be 'stop', 'skip' or 'roll_back'. Received: {policy!r}.")
        for name, number in (("max_skipped_in_a_row", max_skipped_in_a_row), ("max_roll_backs", max_roll_backs)):
            if number < 0:
                raise ArgumentError(f"TerminateOnNaN: {name} must be at least 0. Received: {number}.")
        self._policy = policy
        self._max_skipped = max_skipped_in_a_row
        self._max_roll_backs = max_roll_backs
        self._fitted: Any = None  # the model; every read of Keras's `self.model` would copy the state into the variables
        self._switch: Switch | None = None
        self._backup: BackupAndRestore | None = None
        self._failure: Exception | None = None
        self._epoch = self._first_batch = 0
        self._first_step: int | None = 0
        self._num_known = 0
        self.num_skipped = 0
        self.num_roll_backs = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Guard the steps of this fit."""
        self._fitted = self._model
        self._failure, self._num_known, self._num_steps = None, 0, 0
        self.num_skipped = self.num_roll_backs = 0
        run = run_of(self._fitted)
        if self._policy == "roll_back":
            found = [] if run is None else [each for each in run.callbacks() if isinstance(each, BackupAndRestore)]
            if not found:
                raise ArgumentError(
                    "TerminateOnNaN('roll_back') needs backups. Give fit a replicant.keras.callbacks.BackupAndRestore too."
                )
            self._backup = found[0]
        if run is not None:
            run.before_saving.append(self._read_all)
        switch = switch_of(self._fitted)
        if switch.is_on:
            raise ArgumentError("The callbacks of this fit include two TerminateOnNaN. Give it one, with the policy that you want.")
        self._switch = switch
        switch.turn_on(latch=self._policy != "skip", then=self._after if self._policy == "roll_back" else None)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Read all verdicts, and count from the first batch of the epoch."""
        self._read_all()
        self._epoch, self._first_step = epoch, None

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Read the verdicts that are ready."""
        if self._first_step is None:  # all earlier steps were read
            self._first_step, self._first_batch = self._num_steps, batch
        self._read(_BEHIND)

    def on_test_begin(self, logs: Any = None) -> None:
        """Read all verdicts before the model is evaluated."""
        if self._switch is not None:
            self._read_all()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Read all verdicts."""
        self._read_all()

    def on_fit_end(self) -> None:
        """Stop guarding the steps."""
        if self._switch is not None:
            self._switch.turn_off()
        self._switch = self._backup = None

    # -- the verdicts of the steps

    def _read_all(self) -> None:
        self._read(0)

    def _read(self, behind: int) -> None:
        if self._failure is not None:
            raise self._failure
        verdicts = _required(self._switch).verdicts
        while len(verdicts) > behind:
            self._handle(Verdict.read(verdicts.popleft()))

    def _handle(self, verdict: Verdict) -> None:
        self._num_steps = verdict.num_steps
        num_new = verdict.num_bad - self._num_known
        self._num_known = verdict.num_bad
        if num_new == 0:
            return
        if self._policy != "skip":
            raise NonFiniteError(f"{self._what(verdict)} {_HINT}")
        self.num_skipped += num_new
        if verdict.in_a_row > self._max_skipped:
            raise NonFiniteError(
                f"{self._what(verdict)} Bad batches in a row: {verdict.in_a_row} (max_skipped_in_a_row={self._max_skipped}). "
                f"{_HINT}"
            )
        others = f" Bad batches skipped before it in the same execution: {num_new - 1}." if num_new > 1 else ""
        warnings.warn(f"{self._what(verdict)} The batch is skipped.{others}", stacklevel=2)

    def _after(self, state: Any) -> Any:
        """Return the state to continue with after an execution, under "roll_back"."""
        verdicts = _required(self._switch).verdicts
        verdict = Verdict.read(verdicts.popleft())
        self._num_steps = verdict.num_steps
        if verdict.num_bad == 0:
            return state
        if self.num_roll_backs >= self._max_roll_backs:
            self._failure = NonFiniteError(
                f"{self._what(verdict)} Earlier roll-backs of this fit: {self.num_roll_backs} (max_roll_backs="
                f"{self._max_roll_backs}). {_HINT}"
            )
            return state
        return self._rolled_back(verdict, state)

    def _rolled_back(self, verdict: Verdict, state: Any) -> Any:
        model = self._fitted
        model._jax_state_synced = False
        model.jax_state_sync()
        try:
            path = _required(self._backup).roll_back()
        except Exception as error:  # noqa: BLE001 - raised later, when Keras's loop is between two steps
            path, self._failure = None, error
        if path is None:
            self._failure = self._failure or NonFiniteError(f"{self._what(verdict)} There is no backup to roll back to. {_HINT}")
        else:
            self.num_roll_backs += 1
            _required(self._switch).forget(Verdict(verdict.num_steps))
            warnings.warn(f"{self._what(verdict)} Rolled back to {path}.", stacklevel=2)
        parts = dict.fromkeys(("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables"), True)
        state = model._get_jax_state(**parts, purge_model_variables=True)
        model._jax_state_synced = False
        return state

    def _what(self, verdict: Verdict) -> str:
        batch = self._first_batch + verdict.step - (self._first_step or 0)
        where = f"in epoch {self._epoch + 1}, batch {batch + 1} (step {verdict.step + 1} of this fit)"
        if np.isfinite(verdict.loss):
            return f"The step would have written a value that is not finite {where}, although the loss was {verdict.loss:g}."
        return f"The loss became {verdict.loss:g} {where}."


_HINT = (
    "The model is as it was before that batch. Check the batch, lower the learning rate, clip gradients (clipnorm=1.0 of the "
    "optimizer), or compute less in float16."
)


def _required(value: Any) -> Any:
    assert value is not None, "set when training begins"
    return value
