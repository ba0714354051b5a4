"""The profile of a whole program, which ``replicant run --profile`` or the environment asks for. It is told on standard error."""

import atexit
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigurationError, ProfileError
from ._profile import Profile

STEPS, FOLDER = "REPLICANT_PROFILE", "REPLICANT_PROFILE_DIR"
PROCESS = "REPLICANT_PROFILE_PROCESS"  # the process that says so if it had no step; others, such as workers of an input, do not


def settings(steps: int, folder: str | None, process: int) -> dict[str, str]:
    """Return the environment with which a program is profiled.

    >>> settings(10, None, 4711)
    {'REPLICANT_PROFILE': '10', 'REPLICANT_PROFILE_PROCESS': '4711'}
    """
    found = {STEPS: str(steps), PROCESS: str(process)}
    return found if folder is None else {**found, FOLDER: str(Path(folder).absolute())}


def start(environ: Mapping[str, str]) -> None:
    """Begin to record, if the environment asks for it.

    Raises:
        ConfigurationError: If it asks for something that is not a number of steps.
    """
    asked = environ.get(STEPS, "")
    if not asked:
        return
    if not (asked.isascii() and asked.isdigit() and int(asked) > 0):
        raise ConfigurationError(f"{STEPS} must be the number of steps to profile, 1 or more, such as {STEPS}=10; got {asked!r}.")
    own = _OfProgram(int(asked), environ.get(FOLDER) or None, tells_of_nothing=environ.get(PROCESS) == str(os.getpid()))
    atexit.register(own.end)


class _OfProgram:
    def __init__(self, steps: int, folder: str | None, *, tells_of_nothing: bool):
        self._profile = Profile(steps, folder, self._tell)
        self._profile.__enter__()  # until the end of the program
        self._process, self._tells_of_nothing, self._is_told = os.getpid(), tells_of_nothing, False

    def end(self) -> None:
        """End the profile with the program, if that had fewer steps."""
        if os.getpid() == self._process and not self._is_told:
            self._profile.__exit__(None, None, None)
            self._tell()

    def _tell(self) -> None:
        self._is_told = True
        try:
            if self._tells_of_nothing or self._profile.steps:
                print(self._profile, file=sys.stderr, flush=True)  # noqa: T201 - as asked
        except ProfileError as error:  # the program goes on
            print(f"replicant: {error}", file=sys.stderr, flush=True)  # noqa: T201 - as above
