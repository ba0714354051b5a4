"""The command line of Open MPI's mpirun."""

import shlex

from ._hosts import parse_hosts
from ._job import Job, no_colon


def mpi_line(job: Job) -> str:
    """The command line of mpirun, for a shell."""
    return shlex.join(mpi_argv(job)) + "\n"


def mpi_argv(job: Job) -> list[str]:
    """The command line of mpirun, as a list of words.

    Raises:
        ArgumentError: If an argument has a meaning for mpirun.
    """
    no_colon(job)
    found = ["mpirun", "-np", str(job.settings.num_workers)]
    slots = parse_hosts(job.hosts)
    if slots:
        found += ["-H", ",".join(f"{host}:{count}" for host, count in slots.items())]
    for name, value in job.variables.items():
        found += ["-x", f"{name}={value}"]
    return [*found, *job.engine_args, *job.argv]
