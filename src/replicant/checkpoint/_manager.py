"""``CheckpointManager``: a directory of numbered checkpoints, which keeps the right ones."""

import functools
import os
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from ..cluster.jax._bootstrap import is_chief
from ..errors import ArgumentError, DamagedCheckpointError
from ._checkpoint import Checkpoint
from ._manifest import read_checked
from ._numbered import numbered_checkpoints, warn_passed_over
from ._options import CheckpointOptions
from .folders._locations import Place, is_remote, lock_on, place_of, reaching, remove
from .policy._metric_direction import Mode, checked_mode
from .policy._retention import Saved, best_of, bests, divided
from .tensorflow.restoring import highest_number, tensorflow_checkpoints_in, warn_of_damage, warn_of_unnamed
from .workers._chief import chiefs


class CheckpointManager:
    """Saves checkpoints in a directory of its own, deletes old ones, and finds the newest whole one.

    Args:
        checkpoint: The checkpoint to save and restore.
        directory: The directory to save in, which is created when needed. From the first save to the end of the program, no other
            program may save there.
        max_to_keep: How many of the newest checkpoints stay; None keeps all. The best one by metric stays too.
        keep_checkpoint_every_n_hours: If set, one of those that would be deleted is kept forever per this many hours of training.
        checkpoint_name: The base name: checkpoints are called ``name-1``, ``name-2``, ...
        step_counter: A number or variable that counts steps, which `checkpoint_interval` needs.
        checkpoint_interval: The number of steps that must pass between two saves; before that, ``save`` does nothing.
        init_fn: A function that ``restore_or_initialize`` calls if there is nothing to restore.
        best_metric: The name of the metric that decides which checkpoint is best, among those passed to ``save``. Of equal ones the
            newest is the best; NaN and infinite values never count.
        best_mode: "max" or "min" says whether the highest or the lowest value is the best. "auto" infers it from the name, as
            Keras's callbacks do.

    The directory may be one in which TensorFlow has saved. Its newest checkpoint is restored as long as there is none of Replicant,
    whose checkpoints are folders beside those files, with numbers above theirs. TensorFlow's files are never changed or deleted,
    and `max_to_keep` does not count them.

    It warns if the checkpoints in `directory` were judged by another metric or mode; the best by each of them stays. The semantics
    are those of tf.train.CheckpointManager; `best_metric` is new.

    Raises:
        ArgumentError: If values contradict each other, or the name `best_metric` does not say whether more or less is better.

    >>> import tempfile, replicant
    >>> step = replicant.Variable(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manager = replicant.CheckpointManager(replicant.Checkpoint(step=step), folder, max_to_keep=2)
    ...     for _ in range(3):
    ...         _ = step.assign_add(1)
    ...         _ = manager.save()
    ...     names = [path.rsplit("/")[-1] for path in manager.checkpoints]
    ...     manager.close()
    >>> names
    ['ckpt-2', 'ckpt-3']
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None,
        *,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        best_metric: str | None = None,
        best_mode: Literal["auto", "min", "max"] = "auto",
    ):
        if max_to_keep is not None and max_to_keep < 1:
            raise ArgumentError(f"max_to_keep must be at least 1, or None to keep all checkpoints. Received: {max_to_keep}.")
        if checkpoint_interval is not None and step_counter is None:
            raise ArgumentError(
                f"checkpoint_interval={checkpoint_interval} counts steps: pass the variable that counts them as step_counter."
            )
        self._checkpoint = checkpoint
        self._prefix = place_of("CheckpointManager: directory", directory) / checkpoint_name
        self._max_to_keep = max_to_keep
        self._keep_every = None if keep_checkpoint_every_n_hours is None else 3600.0 * keep_checkpoint_every_n_hours
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._best_metric = best_metric
        self._mode: Mode | None = checked_mode(best_metric, best_mode)
        self._lock = lock_on(self._prefix.parent)
        self._last_step: int | None = None
        self._tried = 0  # the number of the last save, whether it has succeeded or not
        self._last_preserved = time.time()
        self._preserved: list[Saved] = []  # those that will never be deleted; the best one may be among them
        self._highest_of_tensorflow = highest_number(self._prefix)
        self._saved = self._found()
        self._compare_judges()

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that is saved."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """The directory that it is saved in."""
        return str(self._prefix.parent)

    @property
    def checkpoint_interval(self) -> int | None:
        """The number of steps between two saves, if it was set."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints that may be deleted later, oldest first. TensorFlow's come before, and are never deleted."""
        self.sync()
        return [*tensorflow_checkpoints_in(self._prefix.parent), *(self._path(each.number) for each in self._saved)]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, or None. ``restore_or_initialize`` also checks that it is not damaged."""
        self.sync()
        return (
            self._path(self._saved[-1].number)
            if self._saved
            else next(reversed(tensorflow_checkpoints_in(self._prefix.parent)), None)
        )

    @property
    def best_checkpoint(self) -> str | None:
        """The path of the best checkpoint by metric, or None if there is none or no `best_metric`."""
        self.sync()
        judged = [each for each in (*self._preserved, *self._saved) if each.name == self._best_metric]
        best = best_of(judged, self._mode) if self._mode else None
        return self._path(best.number) if best else None

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> str | None:
        """Save under the next number, and delete checkpoints that need not stay.

        Args:
            checkpoint_number: A number to use instead, such as that of the step.
            check_interval: Whether to do nothing until `checkpoint_interval` steps have passed.
            options: How to write. With a background write, old checkpoints are deleted once the new one is complete.
            metrics: Metrics by name, of which the one called `best_metric` counts.

        Returns:
            The path, or None if nothing was done.

        Raises:
            ArgumentError: If `best_metric` is not among `metrics`.
            CheckpointError: If the checkpoint cannot be written, or another program saves in the directory.
        """
        return self._save(functools.partial(self._metric, metrics), checkpoint_number, check_interval, options)

    def _save(
        self,
        metric: Callable[[], float | None],
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Save. `metric` returns the value that the checkpoint is judged by, or None if it is unknown."""
        self.sync()
        step = None if self._step_counter is None else int(self._step_counter)
        if check_interval and self._interval and _less(step, self._last_step, self._interval):
            return None
        judged = metric()
        if is_chief():
            self._lock.acquire()
        number, now = chiefs("checkpoint number", lambda: [self._next_number(), time.time()])
        number = int(checkpoint_number) if checkpoint_number is not None else number
        self._warn_of_higher(number)
        stay, preserved, gone = self._sorted_out(Saved(number, now, judged, self._best_metric, self._mode))
        last_preserved = preserved[-1].saved_at if preserved else self._last_preserved
        extra = {"saved_at": now, "metric": judged, "last_preserved": last_preserved}
        extra |= {"metric_name": self._best_metric, "mode": self._mode}
        apply = functools.partial(self._apply, stay, preserved, gone, last_preserved)
        path = self._checkpoint._write(  # noqa: SLF001 - what is behind all ways to save; no name for users
            self._place(number), number, options, extra=extra, then=apply
        )
        if not is_chief():
            self._apply(stay, preserved, [], last_preserved)
        self._checkpoint._save_counter = number  # noqa: SLF001 - whose numbers are given here
        self._last_step = step
        return path

    def _warn_of_higher(self, number: int) -> None:
        """Warn of a number below the highest, which a restart takes for the newest."""
        highest = max((each.number for each in self._saved), default=number)
        if highest > number and is_chief():
            warnings.warn(
                f"save: the number {number} is lower than {highest}, that of a checkpoint in {self._prefix.parent}. After a "
                f"restart, the highest number counts as the newest, so training would go on from {highest}. If that run was given "
                f"up, delete its checkpoints, or save under numbers above {highest}.",
                stacklevel=4,
            )

    def sync(self) -> None:
        """Wait for the background write.

        Raises:
            CheckpointError: If the checkpoint could not be written.
        """
        self._checkpoint.sync()

    def restore_or_initialize(self, *, by_order: bool = False) -> str | None:
        """Restore the newest checkpoint that is not damaged; damaged ones are skipped with a warning.

        Args:
            by_order: As in ``Checkpoint.restore``, for a checkpoint of TensorFlow.

        Returns:
            Its path, or None if there is none; then `init_fn` was called.

        Raises:
            CheckpointError: If it belongs to other objects, or to a newer version of Replicant.
        """
        self.sync()
        own = chiefs("checkpoints", lambda: [self._path(each.number) for each in reversed(self._saved)])
        theirs = chiefs("checkpoints of TensorFlow", lambda: tensorflow_checkpoints_in(self._prefix.parent)[::-1])
        for path in (*own, *theirs):
            try:
                self._checkpoint.restore(path, by_order=by_order)  # reads and checks every byte before it changes anything
            except DamagedCheckpointError as error:
                (warn_of_damage if path in theirs else warn_passed_over)(path, error, stacklevel=3)
                continue
            self._last_step = None if self._step_counter is None else int(self._step_counter)
            return path
        if is_chief():
            warn_of_unnamed(self._prefix.parent, stacklevel=3)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def close(self) -> None:
        """Wait for the background write, and let other programs save in the directory. The end of the program does it too."""
        try:
            self.sync()
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _metric(self, metrics: Mapping[str, float] | None) -> float | None:
        if self._best_metric is None:
            return None
        if metrics is None or self._best_metric not in metrics:
            given = ", ".join(metrics) if metrics else "none"
            raise ArgumentError(
                f"This manager keeps the checkpoint with the best {self._best_metric!r}, so save needs this metric: "
                f"save(metrics={{{self._best_metric!r}: ...}}). Received metrics: {given}."
            )
        try:
            return float(metrics[self._best_metric])
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"save: the metric {self._best_metric!r} must be a number. Received: {metrics[self._best_metric]!r}."
            ) from error

    def _next_number(self) -> int:
        known = [self._highest_of_tensorflow, *(each.number for each in (*self._preserved, *self._saved))]
        # At a URL, listing takes requests, for which the next step would wait. It is needed after a save that has failed, perhaps
        # because another program has saved.
        if not is_remote(self._prefix) or self._tried > max(known):
            known += [number for number, _ in numbered_checkpoints(self._prefix)]
        number = max([self._checkpoint.save_counter, self._tried if is_remote(self._prefix) else 0, *known]) + 1
        self._tried = number
        return number

    def _place(self, number: int) -> Place:
        return self._prefix.with_name(f"{self._prefix.name}-{number}")

    def _path(self, number: int) -> str:
        return str(self._place(number))

    def _found(self) -> list[Saved]:
        """The checkpoints in the directory. Damaged ones count too, and are deleted when their time comes."""
        saved = []
        for number, path in numbered_checkpoints(self._prefix):
            try:
                meta = read_checked(path)["meta"]
            except DamagedCheckpointError:
                with reaching():
                    saved.append(Saved(number, path.stat().st_mtime))
                continue
            extra = meta["extra"]  # empty if a plain Checkpoint wrote it
            saved_at, preserved = (_number(extra.get(name)) for name in ("saved_at", "last_preserved"))
            name, mode = extra.get("metric_name"), extra.get("mode")
            is_judged = isinstance(name, str) and mode in ("min", "max")
            judge = (name, mode) if is_judged else (None, None)
            saved.append(Saved(number, meta["saved_at"] if saved_at is None else saved_at, _number(extra.get("metric")), *judge))
            self._last_preserved = self._last_preserved if preserved is None else preserved
        if self._keep_every is None:
            return saved
        self._preserved = [each for each in saved if each.saved_at <= self._last_preserved]
        return [each for each in saved if each.saved_at > self._last_preserved]

    def _compare_judges(self) -> None:
        """Warn if existing checkpoints were judged in another way."""
        mine = (self._best_metric, self._mode)
        others = {(each.name, each.mode) for each in self._saved if each.metric is not None} - {mine}
        if others:
            told = ", ".join(sorted(f"{name or 'a metric without a name'!r} ({mode or 'min or max'})" for name, mode in others))
            judged = f"judges by {mine[0]!r} ({mine[1]})" if mine[0] else "judges by no metric"
            warnings.warn(
                f"The checkpoints in {self.directory} were saved with {told} as best_metric, but this manager {judged}. The best "
                "by each of them stays; delete those that you do not need.",
                stacklevel=3,
            )

    def _sorted_out(self, new: Saved) -> tuple[list[Saved], list[Saved], list[Saved]]:
        """What stays, is preserved and is deleted once `new` is complete."""
        saved = [*self._saved, new]
        return divided(
            saved,
            max_to_keep=self._max_to_keep,
            keep_every_seconds=self._keep_every,
            last_preserved=self._last_preserved,
            best=bests([*self._preserved, *saved], self._best_metric, self._mode),
        )

    def _apply(self, stay: list[Saved], preserved: list[Saved], gone: list[Saved], last_preserved: float) -> None:
        self._saved, self._last_preserved = [*gone, *stay], last_preserved
        self._preserved = [*self._preserved, *preserved]
        for each in gone:
            if remove(self._place(each.number)):
                self._saved.remove(each)


def _less(step: int | None, last_step: int | None, interval: int) -> bool:
    """Whether fewer than `interval` steps have passed since the last save; never before the first one."""
    return step is not None and last_step is not None and step < last_step + interval


def _number(value: Any) -> float | None:
    """A number from a manifest, or None for anything else."""
    return float(value) if type(value) in (int, float) else None
