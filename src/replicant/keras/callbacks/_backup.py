"""``BackupAndRestore``: continues an interrupted ``fit`` exactly where it stopped."""

import dataclasses
import datetime as dt
import functools
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ...checkpoint import Checkpoint, CheckpointOptions
from ...checkpoint._numbered import numbered_checkpoints, warn_passed_over
from ...checkpoint.folders._locations import Place, is_remote, lock_on, place_at, place_of, reaching, remove
from ...checkpoint.format._json_values import pack, unpack
from ...checkpoint.workers._chief import chiefs
from ...cluster.jax._bootstrap import is_chief
from ...errors import ArgumentError, CheckpointError, DamagedCheckpointError
from ..loops._fit_callbacks import FirstCallback, FitCallback, Run, run_of
from ..loops._saved_position import Position, Randomness
from ..steps._stateful_step import other_optimizers
from ..steps._steps_of_model import unsaved
from ._backup_of_tensorflow import continue_from, is_in
from ._backup_state import CallbackStates

_NAME = "backup"
_KEPT = 2  # the newest backup, and one more in case it is damaged
_ASK_SECONDS = 1.0  # between two looks at the clock, which all workers take together
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class BackupAndRestore(FirstCallback, keras.callbacks.Callback):
    """Backs up the whole state of ``fit``, and continues an interrupted ``fit`` when you start the same program again.

    A backup holds the epoch, the step in the epoch, weights, optimizer, metrics so far, dropout seeds, the position in the data and
    its shuffled order, the global random generators of NumPy, Python and Keras, ``History``, and the state of other callbacks
    (``EarlyStopping``, ``ReduceLROnPlateau``, ``ModelCheckpoint``, ...). So the final weights are those of a run that was never
    interrupted: the same bits on the same number of devices. Start the program with the same model, data, arguments of ``fit`` and
    callbacks.

    A fit that continues prints one line that says where, unless its `verbose` is 0.

    The last two backups are kept. A damaged one is skipped with a warning. Replicant's datasets continue directly. From other
    inputs, the batches before the position are read again and thrown away. These inputs must yield the same order again, so set
    their seeds.

    In a directory with a backup that Keras made on TensorFlow, the fit continues from that one until there is one of its own: with
    model and optimizer, at the beginning of the epoch that was not complete. That backup is left as it is. So the last backup is
    kept, too, whatever `delete_checkpoint` says, and a fit with another beginning needs another directory.

    Args:
        backup_dir: A directory for these backups alone. It is created if needed. No other program may use it while ``fit`` runs.
        save_freq: ``"epoch"``, a number of batches, or a time such as ``"30s"``, ``"10m"`` or ``"1h"``; False for never. The next
            step waits only until the values are on the host. The backup is then written in the background.
        delete_checkpoint: Whether to delete the backup when ``fit`` has finished.

    Raises:
        ArgumentError: If an argument is not as described.
        CheckpointError: From ``fit``, if the backup belongs to another model or other data, if another program uses the directory,
            or if a backup cannot be written.

    Semantics: ``keras.callbacks.BackupAndRestore``, which starts the interrupted epoch again, with other data.

    >>> import keras, numpy as np, replicant, tempfile
    >>> class Power(keras.callbacks.Callback):
    ...     def __init__(self, last_step):
    ...         super().__init__()
    ...         self.last_step = last_step
    ...     def on_train_batch_end(self, batch, logs=None):
    ...         if self.model.optimizer.iterations == self.last_step:
    ...             raise RuntimeError("gone")
    >>> def train(folder, last_step=0):
    ...     keras.utils.set_random_seed(1)
    ...     model = keras.Sequential([keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    ...     model.compile("adam", "mse")
    ...     backup = replicant.keras.callbacks.BackupAndRestore(folder, save_freq=3)
    ...     history = model.fit(np.ones((8, 3)), np.ones(8), 2, epochs=2, verbose=0, callbacks=[backup, Power(last_step)])
    ...     return history.history["loss"]
    >>> with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
    ...     uninterrupted = train(one)
    ...     try:
    ...         train(other, last_step=5)
    ...     except RuntimeError:
    ...         pass
    ...     train(other) == uninterrupted
    True
    """

    def __init__(self, backup_dir: str | os.PathLike[str], save_freq: int | str | bool = "epoch", delete_checkpoint: bool = True):
        super().__init__()
        if not os.fspath(backup_dir):
            raise ArgumentError("backup_dir is empty. Name a directory that nothing else uses.")
        self._prefix = place_of("BackupAndRestore: backup_dir", backup_dir) / _NAME
        self._asked, self._save_freq = save_freq, _parsed(save_freq)
        self._delete = delete_checkpoint
        self._lock = lock_on(self._prefix.parent)
        self._checkpoint: Checkpoint | None = None
        self._fitted: Any = None  # the model; every read of Keras's `self.model` would copy the state into the variables
        self._number = 0  # of the last backup
        self._due = _Due(*self._save_freq)
        self._told: set[str] = set()

    # -- Keras's hooks. This callback runs before all others, so between two steps their states are those after the last step.

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the newest backup, if there is one."""
        model: Any = self._model
        self._fitted = model
        self._run = _running(model)
        self._run.check_save_freq(self._asked)
        self._checkpoint = Checkpoint(model=model, metrics=list(model.metrics))
        if model.optimizer is not None:
            self._checkpoint.optimizer = model.optimizer
        if others := other_optimizers(model):
            self._checkpoint.optimizers = others
        self._states: CallbackStates | None = None
        self._epoch = 0
        self._due = _Due(*self._save_freq)
        if is_chief():
            self._lock.acquire()
        self._resume = self._restore()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restore the states of the callbacks, or back up the epoch that has ended."""
        self._epoch, self._num_steps = epoch, 0
        if self._states is None:
            self._begin()
        elif self._due.epoch(self._fitted.steps_per_execution):
            self.save()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Back up if a backup is due."""
        done = batch - self._num_steps
        self._num_steps = batch
        if self._due.steps(max(0, done)):
            self.save()

    def on_train_end(self, logs: Any = None) -> None:
        """Delete the backup, or leave one which says that the training is complete. Otherwise, TensorFlow's would count again."""
        was_complete = self._states is None
        if was_complete:
            self._begin()
        if self._checkpoint is not None:
            self._checkpoint.sync()
        if not self._delete or is_in(self._prefix.parent):
            if not was_complete:
                self._epoch, self._num_steps = self._epoch + 1, 0
                self.save()
            self.sync()
            return
        if is_chief():
            for _, path in numbered_checkpoints(self._prefix):
                remove(path)

    def on_fit_end(self) -> None:
        """Wait for the last backup, and release the directory."""
        try:
            self.sync()
        finally:
            self._lock.release()
            folder = self._prefix.parent
            if self._delete and is_chief() and isinstance(folder, Path) and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    # -- for Replicant's other callbacks

    def save(self, *, all_done: bool = False, metrics: list[np.ndarray] | None = None) -> None:
        """Back up now, between two steps.

        Args:
            all_done: Whether all steps of the epoch are done.
            metrics: The values of the metrics after these steps, if `all_done`.
        """
        for prepare in self._run.before_saving:
            prepare()
        self._fitted.jax_state_sync()
        self._warn_of_unsaved()
        num_steps = self._num_steps + (self._fitted.steps_per_execution if all_done else 0)
        position = self._run.position(self._epoch, num_steps, all_done=all_done)
        extra = {
            "position": dataclasses.asdict(position),
            "now": dataclasses.asdict(Randomness.now()),
            "logs": keras.tree.map_structure(_number, self._run.logs),
            "metrics": metrics,
            "callbacks": _required(self._states).save(),
        }
        arrays: list[np.ndarray] = []
        packed = pack(extra, arrays)
        checkpoint = _required(self._checkpoint)
        checkpoint.sync()
        number = self._number = chiefs("backup number", self._next_number)
        path = self._prefix.with_name(f"{_NAME}-{number}")
        options = CheckpointOptions(enable_async=True)
        checkpoint._write(
            path, number, options, extra=packed, extra_arrays=arrays, then=functools.partial(self._forget_old, number)
        )
        self._due.saved()

    def _warn_of_unsaved(self) -> None:
        names = [name for name in unsaved(self._fitted) if name not in self._told]
        self._told.update(names)
        if names:
            warnings.warn(
                f"A backup does not hold the variables {names}, which the train_step of {self._fitted.name!r} uses. After an "
                "interruption they start again. Make them, or the object that has them, an attribute of the model.",
                stacklevel=3,
            )

    def roll_back(self) -> Place | None:
        """Give model, optimizer and metrics their values in the newest backup, but stay at the present position in the data.

        If the epoch began after the backup, its metrics start again.

        Returns:
            The path of the backup; None if there is none.
        """
        self.sync()
        path, saved = self._read_newest()
        if path is not None and saved["position"]["epoch"] != self._epoch:
            self._fitted.reset_metrics()
        return path

    def sync(self) -> None:
        """Wait until the last backup is on the disk.

        Raises:
            CheckpointError: If it could not be written.
        """
        if self._checkpoint is not None:
            self._checkpoint.sync()

    # -- the rest

    def _next_number(self) -> int:
        if is_remote(self._prefix) and self._number:  # listing takes requests, for which the next step would wait
            return self._number + 1
        return max([0, *(number for number, _ in numbered_checkpoints(self._prefix))]) + 1

    def _forget_old(self, number: int) -> None:
        """Delete all but the newest, now that the backup with this number is there."""
        found = numbered_checkpoints(self._prefix)
        if found and found[-1][0] > number:  # at a URL, where there is no lock
            raise CheckpointError(
                f"Another program saves in {self._prefix.parent}: this fit has just written {_NAME}-{number}, but there is "
                f"{found[-1][1].name}. Each fit needs a backup_dir of its own."
            )
        for _, path in found[:-_KEPT]:
            remove(path)

    def _restore(self) -> dict[str, Any] | None:
        """Restore the variables, and return everything else that was saved."""
        path, saved = self._read_newest()
        if path is None:
            self._go_on_from_tensorflow()
        else:
            self._go_on(saved)
            self._tell(path)
        return saved

    def _go_on_from_tensorflow(self) -> None:
        """Continue a fit that has run on TensorFlow, if there is its backup: at the beginning of an epoch."""
        steps = (self.params or {}).get("steps")
        found = continue_from(self._prefix.parent, self._fitted, _required(self._checkpoint), steps)
        if found is not None:
            self._epoch, path = found
            self._fitted._initial_epoch = self._epoch
            self._tell(path)

    def _tell(self, path: Place) -> None:
        """Print where the fit goes on, unless it is silent. Keras counts epochs and steps from 1 in what it prints."""
        params = self.params or {}
        if not params.get("verbose") or not is_chief():
            return
        with reaching():
            made = dt.datetime.fromtimestamp(path.stat().st_mtime).astimezone()
        today = made.date() == dt.datetime.now().astimezone().date()
        source = f"backup of {made:%H:%M}" if today else f"backup of {made:%Y-%m-%d %H:%M}"
        position, size = self._run.resume, params.get("steps")
        epoch, num_steps = self._epoch + 1, 0 if position is None else position.num_steps
        if position is not None and num_steps and (position.all_done or num_steps == size):
            place = f"the end of epoch {epoch}"
        else:
            place = f"epoch {epoch}" + (f", step {num_steps + 1}" if num_steps else "")
        done = self._epoch >= params.get("epochs", epoch)
        text = f"All {self._epoch} epochs are done" if done else f"Continuing at {place}"
        print(f"{text} ({source}).", flush=True)  # noqa: T201 - beside Keras's own lines

    def _read_newest(self) -> tuple[Place | None, Any]:
        """Restore the variables from the newest undamaged backup. Return its path and everything else that was saved."""
        checkpoint = _required(self._checkpoint)
        for name in chiefs("backups", lambda: [str(path) for _, path in reversed(numbered_checkpoints(self._prefix))]):
            path = place_at(name)
            try:
                status, meta, arrays = checkpoint._read("restore", name)
            except DamagedCheckpointError as error:
                warn_passed_over(path, error, stacklevel=2)
                continue
            status.assert_consumed()
            if "dict" not in meta["extra"]:
                raise CheckpointError(f"{path} is a checkpoint, but not a backup of a fit. Choose another backup_dir.")
            return path, _checked(path, unpack(meta["extra"], arrays), self._fitted)
        return None, None

    def _go_on(self, saved: dict[str, Any]) -> None:
        position = Position.of(saved["position"])
        self._run.check(position, int((self.params or {}).get("epochs", 1)))
        self._run.resume, self._run.logs = position, saved["logs"]
        self._fitted._initial_epoch = position.epoch
        self._epoch, self._num_steps = position.epoch, position.num_steps
        self._metrics = saved["metrics"] or [np.array(variable.value) for variable in self._fitted.metrics_variables]

    def _begin(self) -> None:
        """Restore the callbacks and the metrics, now that all callbacks know that training begins."""
        others = [callback for callback in _callbacks_of(self._fitted) if not isinstance(callback, FitCallback)]
        self._states = CallbackStates(others)
        saved = self._resume
        if saved is None:
            return
        self._states.restore(saved["callbacks"])
        if saved["position"]["num_steps"]:  # Keras has reset the metrics at the beginning of the epoch
            for variable, value in zip(self._fitted.metrics_variables, self._metrics, strict=True):
                variable.assign(value)
            self._num_steps = saved["position"]["num_steps"]
        saved["now"].bring_back()


class _Due:
    """Decides when a backup is due: never, or after every epoch, number of steps or number of seconds."""

    def __init__(self, kind: str, amount: float):
        self._kind, self._amount = kind, amount
        self._until = 0  # steps until the workers ask the chief again
        self._stride, self._asked = 1, time.monotonic()  # on the chief: how many steps it last chose, and when
        self._num_steps, self._time = 0, time.monotonic()  # since the last backup, and when that was made

    def saved(self) -> None:
        """Note that a backup was made."""
        self._num_steps, self._time = 0, time.monotonic()

    def steps(self, count: int) -> bool:
        """Count steps, and return whether a backup is due."""
        self._num_steps += count
        if self._kind == "seconds":
            self._until -= count
            if self._until > 0:
                return False
            is_due, self._until = chiefs("backup due", self._look_at_the_clock)
            return is_due
        return self._kind == "steps" and self._num_steps >= self._amount

    def _look_at_the_clock(self) -> tuple[bool, int]:
        """Return whether a backup is due, and after how many steps to ask again: about a second's, or fewer if it is due soon."""
        now = time.monotonic()
        seconds = max(1e-6, (now - self._asked) / self._stride)  # per step
        left = self._amount - (now - self._time)
        pause = min(_ASK_SECONDS, left if left > 0 else self._amount)
        self._stride, self._asked = max(1, min(2 * self._stride, int(pause / seconds))), now
        return left <= 0, self._stride

    def epoch(self, count: int) -> bool:
        """Count the last steps of an epoch, and return whether a backup is due."""
        return self.steps(count) or self._kind == "epoch"


def _parsed(save_freq: int | str | bool) -> tuple[str, float]:
    if save_freq is False:
        return "never", 0
    if save_freq == "epoch":
        return "epoch", 0
    if isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq > 0:
        return "steps", save_freq
    if isinstance(save_freq, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", save_freq)):
        return "seconds", float(match[1]) * _SECONDS[match[2]]
    raise ArgumentError(
        f"save_freq must be 'epoch', a positive number of batches, a time such as '30s', '10m' or '1h', or False; got "
        f"{save_freq!r}."
    )


def _callbacks_of(model: Any) -> list[Any]:
    """Return all callbacks of the fit that is running."""
    return _running(model).callbacks()


def _running(model: Any) -> Run:
    """Return the fit that the model is in."""
    run = run_of(model)
    if run is None:
        raise CheckpointError(
            "BackupAndRestore follows model.fit through its data, but it does not know this fit. Use it only in model.fit, and "
            "make it before the call: backup = BackupAndRestore(...), and then model.fit(..., callbacks=[backup])."
        )
    return run


def _checked(path: Place, saved: Any, model: Any) -> dict[str, Any]:
    """Return what was saved beside the variables, after checking it.

    Raises:
        CheckpointError: If it is not what ``save`` writes.
    """
    shapes = [tuple(variable.shape) for variable in model.metrics_variables]
    try:
        metrics, logs, callbacks = saved["metrics"], saved["logs"], saved["callbacks"]
        are_right = (
            (metrics is None or [each.shape for each in metrics] in ([], shapes))
            and isinstance(logs, dict)
            and isinstance(saved["position"], dict)
            and all(isinstance(name, str) and isinstance(changed, dict) for name, changed in callbacks)
        )
        saved = {**saved, "now": Randomness(**saved["now"])}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is not a backup of a fit ({type(error).__name__}: {error}). Choose another backup_dir."
        ) from error
    if not are_right:
        raise CheckpointError(f"{path} is not a backup of this fit. Choose another backup_dir.")
    return saved


def _number(value: Any) -> Any:
    return float(value) if hasattr(value, "dtype") else value


def _required(value: Any) -> Any:
    assert value is not None, "set when training begins"
    return value
