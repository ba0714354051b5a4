"""Makes job files and command lines for other systems from the settings of a job. Only `submit_job` runs anything.

The resolvers in `replicant.cluster` read the variables that these systems set, so a job file is short.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

from ...errors import ConfigurationError
from ._clouds import sagemaker_file, vertex_file
from ._job import Job
from ._kubernetes import jobset_file, kubernetes_file, trainer_file
from ._mpi import mpi_argv, mpi_line
from ._options import check_taken
from ._slurm import UNSET, slurm_file

_WRITERS: dict[str, Callable[[Job], str]] = {
    "slurm": slurm_file,
    "kubernetes": kubernetes_file,
    "jobset": jobset_file,
    "trainer": trainer_file,
    "vertex": vertex_file,
    "sagemaker": sagemaker_file,
    "mpi": mpi_line,
}


def describe_job(job: Job) -> str:
    """The job file or, for MPI, the command line.

    Raises:
        ArgumentError: If an option has no place in it.
    """
    return _WRITERS[job.engine](job)


def submit_job(job: Job, environ: Mapping[str, str] | None = None) -> int:
    """Give the job to its engine.

    Args:
        job: The job.
        environ: The environment of the engine's command. By default the process's own.

    Returns:
        The exit code of ``sbatch``, ``kubectl`` or ``mpirun``.

    Raises:
        ArgumentError: If the engine takes only files, or if an option has no place in the job.
        ConfigurationError: If the engine's command is not installed.
    """
    check_taken("submit", job.engine)
    found = {name: value for name, value in (os.environ if environ is None else environ).items() if name not in UNSET}
    text = None if job.engine == "mpi" else describe_job(job).encode()
    command = {"mpi": mpi_argv, "slurm": lambda _: ["sbatch"]}.get(job.engine, lambda _: ["kubectl", "apply", "-f", "-"])(job)
    path = shutil.which(command[0], path=found.get("PATH"))
    if path is None:
        raise ConfigurationError(
            f"--submit needs the command {command[0]!r}, which is not on PATH. Leave --submit out to print the job, and submit it "
            "on a machine that has the command."
        )
    return subprocess.run([path, *command[1:]], input=text, env=found, check=False).returncode  # noqa: S603 - what the user asked for
