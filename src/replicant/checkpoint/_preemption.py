"""``PreemptionCheckpointHandler``: lets your own training loop save after the step and exit, when it is asked to leave."""

import os
from collections.abc import Callable
from typing import Any, Self

from ..errors import ArgumentError
from ._checkpoint import Checkpoint
from ._manager import CheckpointManager
from .policy._termination import Termination, TerminationConfig


class PreemptionCheckpointHandler:
    """Restores the newest checkpoint when it is created; later saves and ends the program when it is asked to leave.

    Args:
        checkpoint_or_checkpoint_manager: The checkpoint to save, or its manager. Include the iterator over the data, so that no
            batch is lost.
        checkpoint_dir: The directory to save in, for a plain checkpoint; a manager has its own.
        termination_config: Who asks to leave, how long saving may take, and the exit code.

    Use it in the main thread. ``handler.run(step, batch)`` calls ``step(batch)``, then saves and exits if the program was asked to
    leave. If more than the step belongs together (a counter, a list of losses), call the step yourself, and
    ``handler.save_checkpoint_if_preempted()`` when all of it is done. When started again, the program continues after that step.
    ``close()``, or the end of a ``with`` block, restores the former handling of SIGTERM. The semantics are those of
    tf.distribute.experimental.PreemptionCheckpointHandler, but the cluster needs no resolver.

    Raises:
        ArgumentError: If it does not know where to save.
        ContextError: If it is created outside the main thread.
        CheckpointError: If the checkpoint that is there cannot be restored.

    >>> import replicant, tempfile
    >>> step = replicant.Variable(0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manager = replicant.CheckpointManager(replicant.Checkpoint(step=step), folder, max_to_keep=2)
    ...     with manager, replicant.PreemptionCheckpointHandler(manager) as handler:
    ...         while handler.total_run_calls < 3:
    ...             _ = handler.run(step.assign_add, 1)
    >>> int(step)
    3
    """

    def __init__(
        self,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        termination_config: TerminationConfig | None = None,
    ):
        manager = checkpoint_or_checkpoint_manager
        if isinstance(manager, Checkpoint):
            if checkpoint_dir is None:
                raise ArgumentError(
                    "PreemptionCheckpointHandler: a plain Checkpoint needs checkpoint_dir, the directory to save in."
                )
            manager = CheckpointManager(manager, checkpoint_dir, max_to_keep=1)
        elif checkpoint_dir is not None:
            raise ArgumentError("PreemptionCheckpointHandler: a CheckpointManager has its own directory; leave checkpoint_dir out.")
        self._manager = manager
        self._calls = manager.checkpoint.preemption_handler = _Calls()
        self._termination = Termination(termination_config or TerminationConfig())
        manager.restore_or_initialize()
        self._termination.start()

    @property
    def total_run_calls(self) -> int:
        """How often ``run`` was called, in this program and in those that it continues."""
        return self._calls.number

    @property
    def is_preempted(self) -> bool:
        """Whether the program was asked to leave."""
        return self._termination.asked_by is not None

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``fn(*args, **kwargs)``, save and exit if the program was asked to leave, and otherwise return the result."""
        result = fn(*args, **kwargs)
        self._calls.number += 1
        self.save_checkpoint_if_preempted()
        return result

    def save_checkpoint_if_preempted(self) -> None:
        """Save and exit, if the program was asked to leave.

        Raises:
            SystemExit: With the exit code, unless there is an `exit_fn`.
        """
        if self._termination.leaves_now():
            # Nobody had the time to measure a metric.
            self._manager._save(lambda: None, check_interval=False)  # noqa: SLF001 - no name for users
            self._manager.close()
            self._termination.leave()

    def close(self) -> None:
        """Stop watching, and restore the former handling of SIGTERM."""
        self._termination.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Calls:
    """The number of calls, as part of the checkpoint."""

    def __init__(self) -> None:
        self.number = 0

    def state(self) -> int:
        """Return the number of calls."""
        return self.number

    def restore(self, state: int) -> None:
        """Continue counting from `state`.

        Raises:
            ArgumentError: If `state` is not a number of calls.
        """
        if type(state) is not int or state < 0:
            raise ArgumentError(f"{state!r} is not a number of calls.")
        self.number = state
