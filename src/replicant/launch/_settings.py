"""The settings of a job: what to launch, and how long to wait."""

import dataclasses
import math
import os
from pathlib import Path

from .._python import users_python
from ..errors import ArgumentError
from ..storage._urls import local_path

MAX_WORKERS = 1024  # on one machine


@dataclasses.dataclass(frozen=True)
class Settings:
    """A job on this machine.

    Args:
        command: The script and its arguments, or with `is_module` the module and its arguments.
        is_module: Whether to run a module, as ``python -m`` does.
        num_workers: The number of workers, which are processes.
        devices_per_worker: The number of virtual CPU devices or accelerators of each worker. By default all that there are.
        max_restarts: How many times the job is started again after failures. With 0 it is never started again.
        elastic: The smallest and the largest number of workers of a job that goes on with the remaining workers when it loses some.
            By default all workers are started again together.
        grace: The seconds that a worker has to end after it was asked to.
        heartbeat: The seconds without a heartbeat after which a worker counts as frozen.
        start: How many seconds later than the first worker the others may come.
        finish: The seconds that a worker may go on without a step once another worker has ended its program.
        stall: The seconds without a step on any worker after which the job counts as stuck. By default it never does.
        log_dir: The directory for one log per worker. By default a temporary one, which is kept if the job fails.
        port: The port of the coordinator. By default a free one.
        status_port: The port of the status page on 127.0.0.1, 0 for a free one. By default there is no such page.
        preempted_code: The exit code of a program that was asked to leave and has saved its state.

    Raises:
        ArgumentError: If a value breaks a rule.
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
    status_port: int | None = None

    def __post_init__(self) -> None:
        _check_count("--workers", self.num_workers, 1, MAX_WORKERS)
        if self.devices_per_worker is not None:
            _check_count("--devices-per-worker", self.devices_per_worker, 1, 1024)
        _check_count("--max-restarts", self.max_restarts, 0, 1_000_000)
        _check_count("--preempted-code", self.preempted_code, 1, 255)
        if self.port is not None:
            _check_count("--port", self.port, 1, 65535)
        if self.status_port is not None:
            _check_count("--status-port", self.status_port, 0, 65535)
        for name in ("grace", "heartbeat", "start", "finish", "stall"):
            _check_seconds(f"--{name}", getattr(self, name))
        if self.log_dir is not None:
            local_path("--log-dir", self.log_dir)
        if self.elastic is not None:
            _check_elastic(self.elastic, self.num_workers)

    @property
    def argv(self) -> list[str]:
        """The command line of a worker."""
        return users_python(*(["-m"] if self.is_module else []), *self.command)


def parse_elastic(text: str) -> tuple[int, int]:
    """The smallest and the largest number of workers, from ``MIN:MAX``.

    Raises:
        ArgumentError: If the text has another form.

    >>> parse_elastic("2:4")
    (2, 4)
    """
    parts = text.split(":")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ArgumentError(f"--elastic {text!r} is not a range of workers. Write MIN:MAX, as in --elastic 2:4.")
    return int(parts[0]), int(parts[1])


def check_script(script: str) -> None:
    """Check that a script exists and can be read.

    Raises:
        ArgumentError: If it does not exist, cannot be read, or is a directory without a ``__main__.py``.
    """
    path = Path(script)
    if not path.exists():
        raise ArgumentError(f"The script {script!r} does not exist (looked in {Path.cwd()}). To run a module, write -m {script}.")
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
        raise ArgumentError(f"--elastic {least}:{most}: the smallest number of workers must be from 1 to the largest, {most}.")
    if not least <= num_workers <= most:
        raise ArgumentError(f"--elastic {least}:{most} does not include --workers {num_workers}, with which the job starts.")
