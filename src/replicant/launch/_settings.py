"""What to launch and how long to wait for what."""

import dataclasses
import math
import os
import sys
from pathlib import Path

from ..errors import ArgumentError

MAX_WORKERS = 1024  # on one machine


@dataclasses.dataclass(frozen=True)
class Settings:
    """A job on this machine.

    Args:
        command: the script, or with `is_module` the module, and its arguments.
        is_module: as ``python -m``.
        num_workers: processes.
        devices_per_worker: virtual CPU devices, or accelerators, of each; None: as there are.
        max_restarts: how often the job is started again after a failure. 0: it is never started again.
        elastic: fewest and most workers; those that are left go on without the lost ones. None: all or none.
        grace: seconds that a worker has to end after it was asked to.
        heartbeat: seconds without a sign of life after which a worker counts as frozen.
        start: seconds that workers may come later than the first one.
        finish: seconds that a worker may go on without a step once another has ended its program.
        stall: seconds without a step on any worker after which the job counts as stuck; None: never.
        log_dir: for one log per worker; None: a temporary one, kept if the job fails.
        port: of the coordinator; None: a free one.
        preempted_code: the exit code of a program that was asked to leave and has saved.

    Raises:
        ArgumentError: a value that breaks a rule.
    """

    command: tuple[str, ...]
    is_module: bool = False
    num_workers: int = 1
    devices_per_worker: int | None = None
    max_restarts: int = 0
    elastic: tuple[int, int] | None = None
    grace: float = 30.0
    heartbeat: float = 30.0
    start: float = 300.0
    finish: float = 300.0
    stall: float | None = None
    log_dir: Path | None = None
    port: int | None = None
    preempted_code: int = 143

    def __post_init__(self) -> None:
        _check_count("--workers", self.num_workers, 1, MAX_WORKERS)
        if self.devices_per_worker is not None:
            _check_count("--devices-per-worker", self.devices_per_worker, 1, 1024)
        _check_count("--max-restarts", self.max_restarts, 0, 1_000_000)
        _check_count("--preempted-code", self.preempted_code, 1, 255)
        if self.port is not None:
            _check_count("--port", self.port, 1, 65535)
        for name in ("grace", "heartbeat", "start", "finish", "stall"):
            _check_seconds(f"--{name}", getattr(self, name))
        if self.elastic is not None:
            _check_elastic(self.elastic, self.num_workers)

    @property
    def argv(self) -> list[str]:
        """The command line of a worker."""
        return [sys.executable, *(["-m"] if self.is_module else []), *self.command]


def parse_elastic(text: str) -> tuple[int, int]:
    """Fewest and most workers, from ``MIN:MAX``.

    Raises:
        ArgumentError: not of that form.

    >>> parse_elastic("2:4")
    (2, 4)
    """
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ArgumentError(f"--elastic {text!r} is not a range of workers. Write MIN:MAX, as in --elastic 2:4.")
    return int(parts[0]), int(parts[1])


def check_script(script: str) -> None:
    """Check that a script is there.

    Raises:
        ArgumentError: it is not, or it is a directory without a ``__main__.py``.
    """
    path = Path(script)
    if not path.exists():
        raise ArgumentError(f"The script {script!r} does not exist (looked in {Path.cwd()}). For a module write -m {script}.")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise ArgumentError(f"The script {script!r} is a directory without a __main__.py.")
    if not os.access(path, os.R_OK):
        raise ArgumentError(f"The script {script!r} cannot be read: permission denied.")


def _check_count(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ArgumentError(f"{name} must be from {least} to {most}. Got {value}.")


def _check_seconds(name: str, value: float | None) -> None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise ArgumentError(f"{name} must be a positive number of seconds. Got {value:g}.")


def _check_elastic(elastic: tuple[int, int], num_workers: int) -> None:
    least, most = elastic
    if not 1 <= least <= most:
        raise ArgumentError(f"--elastic {least}:{most}: the fewest workers must be from 1 to the most, {most}.")
    if not least <= num_workers <= most:
        raise ArgumentError(f"--elastic {least}:{most} does not contain --workers {num_workers}, with which the job starts.")
