"""A job that another system runs: the same for all of these systems."""

import dataclasses
import re
from pathlib import Path

from ...errors import ArgumentError
from .._cpu import virtual_devices
from .._settings import Settings
from ._hosts import parse_hosts
from ._options import IN_CONTAINERS, JOBS, check_engine, check_taken


@dataclasses.dataclass(frozen=True)
class Job:
    """A job for an engine.

    Args:
        settings: What to run, and with how many workers. Times and ports that the engine decides itself are not used.
        engine: The engine, one of `JOBS`.
        name: The name of the job. By default that of the script.
        hosts: The hosts, each as ``HOST`` or ``HOST:WORKERS``. By default the engine chooses them.
        image: The container image, for engines that need one.
        engine_args: Further options for ``#SBATCH`` lines or for mpirun, or else ``NAME=VALUE``: limits of a container's resources,
            or fields of a job on Vertex AI or SageMaker.
        python: The name of the interpreter on the hosts.

    Raises:
        ArgumentError: If a value breaks a rule.
    """

    settings: Settings
    engine: str
    name: str = ""
    hosts: tuple[str, ...] = ()
    image: str = ""
    engine_args: tuple[str, ...] = ()
    python: str = "python"

    def __post_init__(self) -> None:
        check_engine(self.engine)
        if self.engine not in JOBS:
            raise ArgumentError(f"--engine {self.engine} runs the job itself, so there is no job file to print or submit.")
        for option in ("name", "hosts", "image"):
            if getattr(self, option):
                check_taken(option, self.engine)
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", self.job_name):
            raise ArgumentError(
                f"--name {self.name!r} is not a valid name. Write a letter and then up to 39 letters, digits and hyphens, all in "
                "lower case, without a hyphen at the end."
            )
        if self.engine in IN_CONTAINERS and not self.image:
            raise ArgumentError(f"--engine {self.engine} needs --image: the container image that contains the script.")
        if not re.fullmatch(r"[^\s\0-\x1f\x7f]*", self.image):
            raise ArgumentError(f"--image {self.image!r} has spaces or control characters, which the name of an image never has.")
        self._check_hosts()
        self._check_text()

    def _check_hosts(self) -> None:
        slots = parse_hosts(self.hosts)
        users = [host for host in slots if "@" in host]
        if users:
            raise ArgumentError(f"--hosts: {users[0]!r} names a user, which is for ssh. For --engine {self.engine} write the host.")
        if slots and sum(slots.values()) < self.settings.num_workers:
            raise ArgumentError(
                f"--hosts {','.join(self.hosts)} has room for {sum(slots.values())} worker(s), but --workers is "
                f"{self.settings.num_workers}. Write HOST:N for N workers on a host."
            )

    def _check_text(self) -> None:
        for word in (self.image, str(self.settings.log_dir or ""), *self.engine_args, *self.argv):
            if any(each == "\0" or "\ud800" <= each <= "\udfff" for each in word):
                raise ArgumentError(
                    f"{word!a} is not UTF-8 text, so it cannot be part of a job for {self.engine}. Rename the file, or change the "
                    "argument."
                )

    @property
    def job_name(self) -> str:
        """The name of the job."""
        if self.name:
            return self.name
        program = self.settings.command[0]
        stem = program if self.settings.is_module else Path(program).stem
        found = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
        found = found if found[:1].isalpha() else f"job-{found}"
        return found[:40].strip("-")

    @property
    def argv(self) -> list[str]:
        """The command line of a worker."""
        return [self.python, *(["-m"] if self.settings.is_module else []), *self.settings.command]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that a worker needs besides those that the engine sets."""
        found = {"PYTHONUNBUFFERED": "1"}
        if (
            self.engine in IN_CONTAINERS
        ):  # Slurm and mpirun have names of their own; here it also stops a worker from training alone
            found["REPLICANT_JOB_ID"] = self.job_name
        if self.settings.devices_per_worker is not None:
            found |= virtual_devices({}, self.settings.devices_per_worker)
        return found

    def fields(self, pattern: str, form: str) -> dict[str, str]:
        """What is in `engine_args`, if each of them is ``NAME=VALUE``.

        Args:
            pattern: The regular expression for one of them, with groups for the name and the value.
            form: The form in words, for the error.

        Raises:
            ArgumentError: If one of them has another form, or if a name is there twice.
        """
        found: dict[str, str] = {}
        for text in self.engine_args:
            match = re.fullmatch(pattern, text)
            if match is None:
                raise ArgumentError(f"--engine-args: {text!r} is not for --engine {self.engine}. Write {form}.")
            if match[1] in found:
                raise ArgumentError(f"--engine-args: {match[1]} is there twice, with {found[match[1]]!r} and {match[2]!r}.")
            found[match[1]] = match[2]
        return found


def no_colon(job: Job) -> None:
    """Check that no argument is a colon, behind which mpirun and srun expect another program.

    Raises:
        ArgumentError: If one is.
    """
    if ":" in (*job.engine_args, *job.argv):
        raise ArgumentError(
            f"an argument is ':', behind which {'mpirun' if job.engine == 'mpi' else 'srun'} expects the options of another "
            "program. Write the argument in another way."
        )
