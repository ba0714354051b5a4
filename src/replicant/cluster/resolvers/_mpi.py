"""Launchers of MPI programs and their like, which tell a process its rank and the number of processes, but no address."""

import dataclasses

from ...errors import ClusterError
from .._addresses import join_address, split_address
from ._environ import (
    RENDEZVOUS,
    WHERE,
    Environ,
    check_rank,
    coordinator_port,
    facts,
    first,
    named_job,
    needed_number,
    number,
    port_of_job,
    told_bind_address,
    told_coordinator,
    told_rendezvous,
)
from ._host_lists import first_host
from ._resolver import FoundClusterResolver

SOURCE = "MPI"
_JOBS = ("PBS_JOBID", "LSB_JOBID", "SLURM_JOB_ID")  # of the scheduler, which all processes on a host inherit


@dataclasses.dataclass(frozen=True)
class _Launcher:
    """The variables that a launcher sets in each process.

    Args:
        name: The name of the launcher.
        rank: The number of this process.
        count: The number of processes.
        local_rank: The number of this process among those on its host.
        local_count: The number of processes on its host.
        hosts: The number of hosts, if the launcher tells it instead of `local_count`.
        job: The name of the job, the same in all processes.
        starts_elsewhere: Whether it starts nothing on the host of the batch script.
    """

    name: str
    rank: str
    count: str
    local_rank: tuple[str, ...]
    local_count: tuple[str, ...] = ()
    hosts: str = ""
    job: str = ""
    starts_elsewhere: bool = False


# Those with names of their own come before those that share the names of PMI. The sources of the names:
# Flux: flux-core, doc/man7/flux-environment.rst. PALS: HPE's pals.h, and Slurm's mpi/cray_shasta, which sets the same.
# MVAPICH2: src/pm/mpirun/mpispawn.c. JSM: as programs for it read them. Hydra: seen in mpich 5.0.2 and impi-rt 2021.19.
# HTCondor, in its parallel universe: src/condor_starter.V6.1/parallel_proc.cpp.
_LAUNCHERS = (
    _Launcher("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", ("FLUX_TASK_LOCAL_ID",), hosts="FLUX_JOB_NNODES", job="FLUX_JOB_ID"),
    _Launcher(
        "Cray PALS",
        "PALS_RANKID",
        "PMI_SIZE",
        ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        ("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"),
        job="PALS_APID",
    ),
    _Launcher(
        "MVAPICH2",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        ("MV2_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Launcher(
        "IBM JSM",
        "JSM_NAMESPACE_RANK",
        "JSM_NAMESPACE_SIZE",
        ("JSM_NAMESPACE_LOCAL_RANK",),
        ("JSM_NAMESPACE_LOCAL_SIZE",),
        starts_elsewhere=True,
    ),
    _Launcher(
        "MPICH or Intel MPI",
        "PMI_RANK",
        "PMI_SIZE",
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        job="I_MPI_HYDRA_UUID",
    ),
    _Launcher("HTCondor", "_CONDOR_PROCNO", "_CONDOR_NPROCS", ()),
)


def find(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for processes that MPICH, Intel MPI, Cray PALS, MVAPICH2, IBM JSM, Flux or HTCondor has started, or None.

    On one host, the processes meet on loopback. None of these launchers tells a process where the others are. So on several hosts,
    the coordinator is expected on the first host that the batch system lists, unless ``JAX_COORDINATOR_ADDRESS`` or
    ``REPLICANT_RENDEZVOUS`` says otherwise. Processes that Slurm has started are left to Slurm's own variables.

    Raises:
        ClusterError: If there are several hosts and nothing tells the first one, or if a variable contradicts another one.

    >>> environ = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    >>> find(environ).membership()
    Membership(process 1 of 2, coordinator 127.0.0.1:...)
    """
    launcher = next((each for each in _LAUNCHERS if first(environ, each.rank) and first(environ, each.count)), None)
    if launcher is None or _is_from_slurm(environ, launcher):
        return None
    rank = needed_number(environ, launcher.name, "", launcher.rank)
    count = needed_number(environ, launcher.name, "", launcher.count)
    check_rank(launcher.name, launcher.rank, rank, launcher.count, count)
    local = _local(environ, launcher, count)
    coordinator, rendezvous, listed = told_coordinator(environ), told_rendezvous(environ) if count > 1 else None, ""
    if coordinator is None and rendezvous is None and count > 1:
        host, listed = ("127.0.0.1", "") if local and local[1] == count else _process_0(environ, launcher)
        coordinator = join_address(host, _port(environ, launcher))
    names = (launcher.rank, launcher.count, *launcher.local_rank, *launcher.local_count, launcher.hosts, launcher.job)
    return FoundClusterResolver(
        [coordinator, *[None] * (count - 1)],
        rank,
        local=local,
        bind_address=told_bind_address(environ),
        because=facts(environ, *names, "JAX_COORDINATOR_ADDRESS", listed, RENDEZVOUS),
        job_id=named_job(launcher.name, first(environ, launcher.job)),
        rendezvous=rendezvous,
    )


def _is_from_slurm(environ: Environ, launcher: _Launcher) -> bool:
    """Whether srun set the variables of PMI beside its own, which also tell the hosts.

    An mpiexec inside a step of Slurm may have the same numbers by chance, but Hydra leaves names of its own.
    """
    if launcher.count != "PMI_SIZE" or first(environ, "HYDI_CONTROL_FD", "HYDRA_BSTRAP_LOCALHOST"):
        return False
    theirs = (number(environ, "SLURM_PROCID"), number(environ, "SLURM_STEP_NUM_TASKS"))
    return None not in theirs and theirs == (number(environ, launcher.rank), number(environ, launcher.count))


def _local(environ: Environ, launcher: _Launcher, count: int) -> tuple[int, int] | None:
    """The rank on this host and the number of processes there, or None unless both are known."""
    rank, size = number(environ, *launcher.local_rank), number(environ, *launcher.local_count)
    if size is None and number(environ, launcher.hosts) == 1:
        size = count
    if rank is None or size is None:
        return None
    sized_by = (*facts(environ, *launcher.local_count, launcher.hosts), launcher.name)[0].partition("=")[0]
    check_rank(launcher.name, facts(environ, *launcher.local_rank)[0].partition("=")[0], rank, sized_by, size)
    if size > count:
        raise ClusterError(f"{launcher.name}: {sized_by}={size} is more than {launcher.count}={count}.")
    return rank, size


def _port(environ: Environ, launcher: _Launcher) -> int:
    """The port where the processes on one host meet, from the name of their job as far as they have one."""
    job = first(environ, launcher.job, *_JOBS)
    return coordinator_port(environ, port_of_job(f"{launcher.name} {job and job[1]}"))


def _process_0(environ: Environ, launcher: _Launcher) -> tuple[str, str]:
    """The host where process 0 is expected, and the variable that tells it.

    Raises:
        ClusterError: If nothing tells it.
    """
    found = first_host(environ, starts_elsewhere=launcher.starts_elsewhere)
    if found is not None:
        split_address(join_address(found[0], 1), f"{launcher.name}: the first host in {found[1]}")
        return found
    told = ", ".join(facts(environ, launcher.count, *launcher.local_count, launcher.hosts))
    raise ClusterError(
        f"{launcher.name}: by {told}, the processes may be on several hosts, and nothing says where process 0 is. Set {WHERE}. "
        "If each process is to train alone, set REPLICANT_SINGLE=1."
    )
