"""``replicant.profile``: records some steps of whatever trains in a ``with`` block."""

import functools
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..errors import ArgumentError, ContextError, ProfileError
from ..runtime import _steps
from ..storage._urls import local_path
from ._recorder import StepRecorder, listen
from ._report import OperationProfile, Report, StepProfile, report, told

_lock = threading.Lock()


def profile(steps: int | None = 10, *, folder: Any = None) -> "Profile":
    """Record where the time of training steps goes, in a ``with`` block.

    A step is a call of a `replicant.function` or of ``strategy.run``, a step of ``fit``, or, under a strategy, of ``evaluate`` or
    ``predict``. Recording begins with the first step in the block, in whichever thread, and ends after `steps` of them or with the
    block. The block itself goes on. Every worker that enters such a block records its own steps, and waits for no other.

    Args:
        steps: How many steps to record; None for all in the block.
        folder: Where to keep the files of JAX's profiler, which TensorBoard and xprof show. Each of several workers writes into a
            folder of its own there. By default, they are deleted once they have been read.

    Returns:
        The profile. ``print`` it after the block, or read its `steps` and `operations`.

    Raises:
        ArgumentError: If `steps` is not a positive number, or if `folder` is not on this machine.
        ContextError: On entering, if another profile is being recorded. At the first step, if JAX's profiler runs already.
        ProfileError: If the folder cannot be written.

    >>> import replicant
    >>> double = replicant.function(lambda x: 2 * x)
    >>> with replicant.profile(steps=3) as profile:
    ...     for number in range(5):
    ...         _ = double(float(number))
    >>> [step.number for step in profile.steps]
    [1, 2, 3]
    >>> print(profile)
    Profile: 3 step(s) on 1 device(s); times in ms
    ...
    """
    return Profile(steps, folder)


class Profile:
    """A profile. `profile` makes it, and its ``with`` block records it."""

    def __init__(self, steps: int | None, folder: Any, when_full: Callable[[], None] | None = None):
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
            raise ArgumentError(f"replicant.profile: steps must be a number of steps, 1 or more, or None for all; got {steps!r}.")
        self._num_steps = steps
        self._kept = None if folder is None else local_path("replicant.profile: folder", folder)
        self._when_full = when_full
        self._recorder: StepRecorder | None = None
        self._report: Report | None = None

    def __enter__(self) -> Self:
        if self._recorder is not None:
            raise ContextError("replicant.profile: this profile has been recorded already. Make one for each `with` block.")
        folder = self._folder()
        recorder = StepRecorder(self._num_steps, folder, self._when_full)
        listen()
        with _lock:
            if _steps.recorder is not None:
                if self._kept is None:
                    shutil.rmtree(folder, ignore_errors=True)
                raise ContextError(
                    "replicant.profile: another profile is being recorded in this process, and JAX's profiler records one at a "
                    "time. Leave its `with` block first. (`replicant run --profile` and REPLICANT_PROFILE record one, too.)"
                )
            _steps.recorder = self._recorder = recorder
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._recorder is not None, "entered"
        self._recorder.stop()

    @property
    def steps(self) -> tuple[StepProfile, ...]:
        """The steps, in the order in which they were started.

        Raises:
            ContextError: If the profile is still being recorded.
            ProfileError: If the file of JAX's profiler is damaged.
        """
        return self._read().steps

    @property
    def operations(self) -> tuple[OperationProfile, ...]:
        """The operations that ran on devices, the longest first.

        Raises:
            ContextError: If the profile is still being recorded.
            ProfileError: If the file of JAX's profiler is damaged.
        """
        return self._read().operations

    @property
    def file(self) -> Path | None:
        """The file that JAX's profiler has written, if it is kept."""
        return None if self._kept is None or self._recorder is None else self._recorder.file

    def __str__(self) -> str:
        if self._recorder is None or _steps.recorder is self._recorder:
            return "Profile: not recorded yet"
        return told(self._read(), self._num_steps, self._recorder.who, self._kept)

    def _read(self) -> Report:
        if self._recorder is None or _steps.recorder is self._recorder:
            raise ContextError("replicant.profile: this profile is not recorded yet. Read it after its `with` block.")
        if self._report is None:
            self._report = report(self._recorder)
        return self._report

    def _folder(self) -> Path:
        """Make the folder for the files. A temporary one goes with this profile."""
        if self._kept is not None:
            try:
                self._kept.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ProfileError(f"replicant.profile: the folder {self._kept} cannot be made: {error.strerror}.") from error
            return self._kept
        folder = Path(tempfile.mkdtemp(prefix="replicant-profile-"))
        weakref.finalize(self, functools.partial(shutil.rmtree, folder, ignore_errors=True))
        return folder
