"""What callbacks know about a ``fit`` on parameter servers. No step is running between two epochs, so its position is an epoch."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ...errors import ArgumentError, CheckpointError
from ...keras.loops._fit_callbacks import FitCallback, Run, flat, followed, watched
from ...keras.loops._saved_position import Position, Randomness


class EpochRun(Run):
    """A call of ``fit`` whose steps are taken by workers, each from data of its own. It counts whole epochs."""

    def __init__(self, model: Any, callbacks: Sequence[Any]):
        super().__init__(model, callbacks)
        self.num_steps: int | None = None  # of an epoch

    def position(self, epoch: int, num_steps: int, *, all_done: bool = False) -> Position:
        """Return the position at the beginning of `epoch`."""
        assert num_steps == 0, "no callback is asked within an epoch"
        del all_done
        return Position(
            epoch=epoch,
            num_steps=0,
            all_done=False,
            passes=[],
            is_live=False,
            num_batches=0,
            seen=0,
            state=None,
            size=self.num_steps,
            begin=Randomness.now(),
        )

    def check(self, resume: Position, num_epochs: int) -> None:
        """Raise CheckpointError if the position is within an epoch, or if the epochs have other lengths."""
        del num_epochs
        if resume.num_steps:
            raise CheckpointError(
                f"The backup was made after step {resume.num_steps} of epoch {resume.epoch + 1}, by a fit without parameter "
                "servers. Under a ParameterServerStrategy, fit continues only at the beginning of an epoch, because the workers "
                "share its steps. Finish the epoch under the strategy that began it, with save_freq='epoch', or choose another "
                "backup_dir to start again."
            )
        if None not in (resume.size, self.num_steps) and resume.size != self.num_steps:
            raise CheckpointError(
                f"This fit has {self.num_steps} steps per epoch, but the saved one had {resume.size}. Pass "
                f"steps_per_epoch={resume.size}, or choose another backup_dir to start again."
            )

    def check_save_freq(self, save_freq: Any) -> None:
        """Raise ArgumentError unless backups are made between epochs."""
        if save_freq is not False and save_freq != "epoch":
            raise ArgumentError(
                f"BackupAndRestore: save_freq={save_freq!r} asks for backups within an epoch, but under a ParameterServerStrategy "
                "the workers share the steps of an epoch, and fit waits for them only at its end. Write save_freq='epoch'; for "
                "more backups, pass a smaller steps_per_epoch and more epochs."
            )


def follow(model: Any, given: Any) -> AbstractContextManager[Any]:
    """Follow a fit on parameter servers, as `followed` does.

    Raises:
        ArgumentError: If a callback follows single steps.
    """
    for callback in flat(given):
        if isinstance(callback, FitCallback) and callback.instead is not None:
            raise ArgumentError(
                f"fit under a ParameterServerStrategy cannot tell {type(callback).__name__} about single steps, because the "
                f"workers take them. Use {callback.instead}."
            )
    return followed(model, given, _watching)


@contextmanager
def _watching(model: Any, callbacks: Sequence[Any]) -> Iterator[None]:
    with watched(EpochRun(model, callbacks)):
        yield
