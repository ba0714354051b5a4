"""What a restore left open, and the lines of messages that list it."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

from ...errors import CheckpointError

MAX_ROWS = 20  # of a list in a message
_NOTHING = "Nothing was restored: the path was None, which latest_checkpoint returns if there is no checkpoint."


class _Restore(Protocol):
    """A ``Restore``, as its status asks it."""

    path: str
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    deferred: tuple[str, ...]
    never_saved: tuple[str, ...]
    hints: tuple[str, ...]
    num_given: int
    answered: bool

    def look(self) -> Self:
        """Continue if something new exists."""
        ...

    def expect_partial(self) -> None:
        """Accept values without a counterpart."""
        ...


class RestoreStatus:
    """The values without a counterpart, on either side, that a restore left open.

    missing: keys of the objects that are not in the checkpoint; these objects kept their values. unexpected: keys of the checkpoint
    that no object has yet; a variable that later becomes part of the objects under such a key gets its value then. deferred: keys
    whose variables are made when a model is first called; they get their values then. never_saved: keys of the objects of a kind
    that TensorFlow leaves out of all its checkpoints; it is empty for checkpoints of Replicant.

    Unless one of the three methods was called, a warning reports what is open: before the next step, when the next checkpoint is
    saved or restored, or at the end of the program, whichever comes first. The semantics are those of the status objects of
    tf.train.Checkpoint.restore.
    """

    def __init__(self, restore: _Restore | None = None, missing: tuple[str, ...] = ()):
        self._restore = restore
        self._missing = missing

    @property
    def path(self) -> str | None:
        """The path of the checkpoint, or None if there was none."""
        return None if self._restore is None else self._restore.path

    @property
    def missing(self) -> tuple[str, ...]:
        """Keys of the objects that are not in the checkpoint."""
        return self._missing if self._restore is None else self._restore.look().missing

    @property
    def unexpected(self) -> tuple[str, ...]:
        """Keys of the checkpoint that no object has."""
        return () if self._restore is None else self._restore.look().unexpected

    @property
    def deferred(self) -> tuple[str, ...]:
        """Keys whose variables are not made yet."""
        return () if self._restore is None else self._restore.look().deferred

    @property
    def never_saved(self) -> tuple[str, ...]:
        """Keys of the states of random layers, which no checkpoint of TensorFlow holds. They have kept their values."""
        return () if self._restore is None else self._restore.look().never_saved

    def assert_consumed(self) -> "RestoreStatus":
        """Check that every value of the checkpoint was used, and that every value of the objects was in it.

        Raises:
            CheckpointError: If that is not so.
        """
        return self._require(lambda restore: (restore.missing, restore.unexpected, restore.deferred))

    def assert_existing_objects_matched(self) -> "RestoreStatus":
        """Check that every value of the objects was in the checkpoint, which may hold more.

        Raises:
            CheckpointError: If that is not so.
        """
        return self._require(lambda restore: (restore.missing, (), ()))

    def assert_nontrivial_match(self) -> "RestoreStatus":
        """Check that at least one value of the checkpoint was used.

        Raises:
            CheckpointError: If none was.
        """
        if self._restore is None:
            raise CheckpointError(_NOTHING)
        restore = self._restore.look()
        if not restore.num_given:
            told = differences(restore.missing, restore.unexpected, restore.hints)
            raise CheckpointError(f"Nothing in the checkpoint {self.path} belongs to the objects.{told}")
        return self

    def expect_partial(self) -> "RestoreStatus":
        """Accept that the two do not match, and do not warn about it. Variables that appear later are restored as usual."""
        if self._restore is not None:
            self._restore.expect_partial()
        return self

    def _require(self, of: Callable[[_Restore], tuple[tuple[str, ...], ...]]) -> "RestoreStatus":
        if self._restore is None:
            raise CheckpointError(_NOTHING)
        missing, unexpected, deferred = of(self._restore.look())
        self._restore.answered = True
        if missing or unexpected or deferred:
            waiting = rows("Waiting for variables that are not made yet (call the model on one batch)", deferred)
            told = differences(missing, unexpected, self._restore.hints)
            raise CheckpointError(f"The checkpoint {self.path} and the objects do not match.{told}{waiting}")
        return self

    def __repr__(self) -> str:
        deferred = f", {len(self.deferred)} deferred" if self.deferred else ""
        return f"<RestoreStatus of {self.path}: {len(self.missing)} missing, {len(self.unexpected)} unexpected{deferred}>"


def differences(missing: Sequence[str], unexpected: Sequence[str], hints: Sequence[str] = ()) -> str:
    """Return the lines of a message that list what is missing in a checkpoint, and what only it has, with what may explain it."""
    lists = rows("Missing in the checkpoint", missing) + rows("In the checkpoint, but not in the objects", unexpected)
    return lists + "".join(f"\n  {hint}" for hint in hints if lists)


def rows(title: str, found: Sequence[str]) -> str:
    """Return the lines of a message that list `found`, the first ones of them if there are many; nothing if there are none."""
    if not found:
        return ""
    more = [f"... and {len(found) - MAX_ROWS} more"] if len(found) > MAX_ROWS else []
    return "".join(f"\n  {row}" for row in [f"{title}:", *(f"  {row}" for row in [*found[:MAX_ROWS], *more])])
