"""``CheckpointManager``: a directory of numbered checkpoints, of which the right ones stay."""

import functools
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from ..errors import ArgumentError, DamagedCheckpointError
from ._atomic_folder import remove
from ._checkpoint import Checkpoint
from ._chief import chiefs, is_writer
from ._direction import Mode, direction_of
from ._lock import DirectoryLock
from ._meta import read_checked
from ._numbered import numbered_checkpoints, warn_passed_over
from ._options import CheckpointOptions
from ._retention import Saved, best_of, bests, divided


class CheckpointManager:
    """Saves checkpoints in a directory of its own, deletes old ones, and finds the newest whole one.

    Args:
        checkpoint: what is saved and restored.
        directory: where; made when needed. From the first save to the end of the program no other program may save there.
        max_to_keep: how many of the newest stay; None: all. The best one by metric stays too.
        keep_checkpoint_every_n_hours: besides, one of those that would be deleted stays for ever, per so many hours of training.
        checkpoint_name: the checkpoints are called ``name-1``, ``name-2``, ...
        step_counter: a number or variable that counts steps; needed for `checkpoint_interval`.
        checkpoint_interval: ``save`` does nothing before so many steps have passed since the last save.
        init_fn: called by ``restore_or_initialize`` where there is nothing to restore.
        best_metric: which of the metrics given to ``save`` decides what is best. Of equal ones the newest counts, and NaN and
            infinite values never do.
        best_mode: "max" or "min" says whether the highest or the lowest value is the best; "auto" tells it from the name, as
            Keras's callbacks do.

    Raises ArgumentError for values that contradict each other, and for a `best_metric` whose name does not say whether more or less
    is better. Warns if the checkpoints in `directory` were judged by another metric or mode: the best by each of them stays.
    Semantics: tf.train.CheckpointManager; `best_metric` is new.

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
        self._prefix = Path(directory) / checkpoint_name
        self._max_to_keep = max_to_keep
        self._keep_every = None if keep_checkpoint_every_n_hours is None else 3600.0 * keep_checkpoint_every_n_hours
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._best_metric = best_metric
        self._mode: Mode | None = _checked_mode(best_metric, best_mode)
        self._lock = DirectoryLock(self._prefix.parent)
        self._last_step: int | None = None
        self._last_preserved = time.time()
        self._preserved: list[Saved] = []  # those that nothing will delete; the best one may be among them
        self._saved = self._found()
        self._compare_judges()

    @property
    def checkpoint(self) -> Checkpoint:
        """What is saved."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """Where it is saved."""
        return str(self._prefix.parent)

    @property
    def checkpoint_interval(self) -> int | None:
        """Steps between two saves, if that was set."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints that may be deleted some day, oldest first."""
        self.sync()
        return [self._path(each.number) for each in self._saved]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest one, None if there is none. ``restore_or_initialize`` also checks that it is whole."""
        self.sync()
        return self._path(self._saved[-1].number) if self._saved else None

    @property
    def best_checkpoint(self) -> str | None:
        """The path of the best one by metric, None if there is none or no `best_metric`."""
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
        """Save under the next number, and delete what need not stay.

        Args:
            checkpoint_number: another number, such as that of the step.
            check_interval: whether nothing is done before `checkpoint_interval` steps have passed.
            options: how it is written; in the background, old ones are deleted once the new one is whole.
            metrics: by name; the one called `best_metric` counts.

        Returns: the path, None if nothing was done.

        Raises ArgumentError if `best_metric` is not among `metrics`, CheckpointError if the checkpoint cannot be written or if
        another program saves in the directory.
        """
        return self._save(functools.partial(self._metric, metrics), checkpoint_number, check_interval, options)

    def _save(
        self,
        metric: Callable[[], float | None],
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """`metric` returns what the checkpoint is judged by, or None where nobody knows."""
        self.sync()
        step = None if self._step_counter is None else int(self._step_counter)
        if check_interval and self._interval and _less(step, self._last_step, self._interval):
            return None
        judged = metric()
        if is_writer():
            self._lock.acquire()
        number, now = chiefs("checkpoint number", lambda: [self._next_number(), time.time()])
        number = int(checkpoint_number) if checkpoint_number is not None else number
        stay, preserved, gone = self._sorted_out(Saved(number, now, judged, self._best_metric, self._mode))
        last_preserved = preserved[-1].saved_at if preserved else self._last_preserved
        extra = {"saved_at": now, "metric": judged, "last_preserved": last_preserved}
        extra |= {"metric_name": self._best_metric, "mode": self._mode}
        apply = functools.partial(self._apply, stay, preserved, gone, last_preserved)
        path = self._checkpoint._write(  # noqa: SLF001 - what is behind all ways to save; no name for users
            Path(self._path(number)), number, options, extra=extra, then=apply
        )
        if not is_writer():
            self._apply(stay, preserved, [], last_preserved)
        self._checkpoint._save_counter = number  # noqa: SLF001 - whose numbers are given here
        self._last_step = step
        return path

    def sync(self) -> None:
        """Wait for what is written in the background. Raises CheckpointError if it could not be written."""
        self._checkpoint.sync()

    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint that is whole; damaged ones are passed over with a warning.

        Returns: its path; None if there is none, after calling `init_fn`.

        Raises CheckpointError if it belongs to other objects, or to a newer version of Replicant.
        """
        self.sync()
        for number in chiefs("checkpoints", lambda: [each.number for each in reversed(self._saved)]):
            path = Path(self._path(number))
            try:
                self._checkpoint.restore(path)  # reads and checks every byte before it gives anybody anything
            except DamagedCheckpointError as error:
                warn_passed_over(path, error, stacklevel=3)
                continue
            self._last_step = None if self._step_counter is None else int(self._step_counter)
            return str(path)
        if self._init_fn is not None:
            self._init_fn()
        return None

    def close(self) -> None:
        """Wait for what is written, and let other programs save in the directory. Done at the end of the program by itself."""
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
                f"This manager keeps the checkpoint with the best {self._best_metric!r}, so save needs it: "
                f"save(metrics={{{self._best_metric!r}: ...}}). Received metrics: {given}."
            )
        try:
            return float(metrics[self._best_metric])
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"save: the metric {self._best_metric!r} must be a number. Received: {metrics[self._best_metric]!r}."
            ) from error

    def _next_number(self) -> int:
        return max([self._checkpoint.save_counter, *(number for number, _ in numbered_checkpoints(self._prefix))]) + 1

    def _path(self, number: int) -> str:
        return str(self._prefix.with_name(f"{self._prefix.name}-{number}"))

    def _found(self) -> list[Saved]:
        """What lies in the directory. Damaged ones count too: they are deleted when their time comes."""
        saved = []
        for number, path in numbered_checkpoints(self._prefix):
            try:
                meta = read_checked(path)["meta"]
            except DamagedCheckpointError:
                saved.append(Saved(number, path.stat().st_mtime))
                continue
            extra = meta["extra"]  # empty if a bare Checkpoint wrote it
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
        """Warn if what was saved was judged in another way."""
        mine = (self._best_metric, self._mode)
        others = {(each.name, each.mode) for each in self._saved if each.metric is not None} - {mine}
        if others:
            told = ", ".join(sorted(f"{name or 'a metric without a name'!r} ({mode or 'min or max'})" for name, mode in others))
            judged = f"judges by {mine[0]!r} ({mine[1]})" if mine[0] else "judges by no metric"
            warnings.warn(
                f"The checkpoints in {self.directory} were saved with {told} as best_metric; this manager {judged}. The best by "
                "each of them stays; delete those that you do not need.",
                stacklevel=3,
            )

    def _sorted_out(self, new: Saved) -> tuple[list[Saved], list[Saved], list[Saved]]:
        """What stays, is preserved and goes once `new` is whole."""
        saved = [*self._saved, new]
        return divided(
            saved,
            max_to_keep=self._max_to_keep,
            keep_every_seconds=self._keep_every,
            last_preserved=self._last_preserved,
            best=bests([*self._preserved, *saved], self._best_metric, self._mode),
        )

    def _apply(self, stay: list[Saved], preserved: list[Saved], gone: list[Saved], last_preserved: float) -> None:
        self._saved, self._last_preserved = stay, last_preserved
        self._preserved = [*self._preserved, *preserved]
        for each in gone:
            remove(Path(self._path(each.number)))


def _less(step: int | None, last_step: int | None, interval: int) -> bool:
    """Whether fewer than `interval` steps have passed; before the first save all have."""
    return step is not None and last_step is not None and step < last_step + interval


def _checked_mode(best_metric: str | None, best_mode: Literal["auto", "min", "max"]) -> Mode | None:
    if best_mode not in ("auto", "min", "max"):
        raise ArgumentError(f"best_mode must be 'auto', 'min' or 'max'. Received: {best_mode!r}.")
    if best_metric is None:
        if best_mode != "auto":
            raise ArgumentError(f"best_mode={best_mode!r} says how best_metric is compared: pass best_metric too.")
        return None
    return direction_of(best_metric) if best_mode == "auto" else best_mode


def _number(value: Any) -> float | None:
    """A number that a manifest holds; None for anything else."""
    return float(value) if type(value) in (int, float) else None
