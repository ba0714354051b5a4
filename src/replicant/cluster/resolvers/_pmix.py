"""Open MPI, and what starts its processes: ORTE up to version 4, PRRTE from version 5, which starts other programs, too."""

import re

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
    local_place,
    named_job,
    needed_number,
    port_of_job,
    told_bind_address,
    told_coordinator,
    told_rendezvous,
)
from ._resolver import FoundClusterResolver

SOURCE = "Open MPI"
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
# Launchers that have PMIx, too. Their own variables know more.
_WITH_PMIX = ("FLUX_TASK_RANK", "PALS_RANKID")


def find(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for processes that Open MPI's mpirun or PRRTE's prterun has started, or None.

    Up to version 4, mpirun is ORTE. From version 5 it is PRRTE, which sets only the variables OMPI_* and PMIX_*. The coordinator is
    process 0, which mpirun starts on its own host first. If it does not, set ``JAX_COORDINATOR_ADDRESS``. prterun tells a process
    its rank only: pass it the number of processes in ``JAX_NUM_PROCESSES``.

    Raises:
        ClusterError: If a variable is missing or contradicts another one.

    >>> environ = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-node1-977@1"}
    >>> find(environ).membership()
    Membership(process 1 of 2, coordinator node1:...)
    """
    namespace, by_mpi = first(environ, "PMIX_NAMESPACE"), first(environ, _RANKS[0]) is not None
    if first(environ, *_RANKS) is None or first(environ, "JSM_NAMESPACE_RANK"):  # jsrun sets Open MPI's, too
        return None
    by_slurm = namespace is not None and namespace[1].startswith("slurm.")  # srun --mpi=pmix: Slurm's variables know more
    if not by_mpi and (by_slurm or first(environ, *_WITH_PMIX)):
        return None
    launcher = SOURCE if by_mpi else "PMIx"
    rank = needed_number(environ, launcher, "", *_RANKS)
    advice = (
        "PMIx tells a process its rank, but not the number of processes: pass -x JAX_NUM_PROCESSES=N to the launcher. If the "
        "process is to train alone, set REPLICANT_SINGLE=1."
    )
    count = needed_number(environ, launcher, advice, "OMPI_COMM_WORLD_SIZE", "JAX_NUM_PROCESSES")
    check_rank(launcher, _RANKS[0] if by_mpi else _RANKS[1], rank, "OMPI_COMM_WORLD_SIZE", count)
    local = local_place(environ, launcher, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    coordinator, rendezvous = told_coordinator(environ), told_rendezvous(environ) if count > 1 else None
    if coordinator is None and rendezvous is None and count > 1:
        host = "127.0.0.1" if local and local[1] == count else _mpirun_host(environ, launcher)
        job = namespace or first(environ, "OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI2") or ("", "")
        coordinator = join_address(host, coordinator_port(environ, port_of_job(job[1])))
        split_address(coordinator, f"{launcher}: the host of mpirun")
    names = (*_RANKS[:1], "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    more = ("PMIX_RANK", "PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", *(() if by_mpi else ("JAX_NUM_PROCESSES",)), RENDEZVOUS)
    return FoundClusterResolver(
        [coordinator, *[None] * (count - 1)],
        rank,
        local=local,
        bind_address=told_bind_address(environ),
        because=facts(environ, *names, *more),
        job_id=named_job(SOURCE, namespace),
        rendezvous=rendezvous,
    )


def _mpirun_host(environ: Environ, launcher: str) -> str:
    """The host where mpirun runs, from ORTE's address or from the name that PRRTE gives a job."""
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.search(r"tcp://([^,:;]+)|tcp6://\[([^,\]]+)", uri)
    if found is not None:
        return found[1] or found[2]
    named = re.fullmatch(r"(?:prterun|prte)-(.+)-[0-9]+@[0-9]+", environ.get("PMIX_NAMESPACE", "").strip())
    if named is not None:
        return named[1]
    raise ClusterError(
        f"{launcher}: neither OMPI_MCA_orte_hnp_uri nor PMIX_NAMESPACE says on which host mpirun runs. Pass mpirun {WHERE}."
    )
