"""What was set for one program, and launchers that tell a process its rank, the number of processes and one address."""

import re

from ...errors import ClusterError
from .._addresses import HIGHEST_PORT, join_address, split_address
from .._spec import ClusterSpec
from ._environ import (
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
)
from ._resolver import ClusterResolver, FoundClusterResolver, SimpleClusterResolver

JAX, TORCHRUN, OPEN_MPI = "JAX variables", "torchrun", "Open MPI"
SINGLE = "REPLICANT_SINGLE"

_JAX_COUNT = ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT")
_JAX_ID = ("JAX_PROCESS_ID", "JAX_PROCESS_INDEX")


class _SingleClusterResolver(SimpleClusterResolver):
    """One process, because REPLICANT_SINGLE says so."""

    _because = (f"{SINGLE}=1",)


def find_single(environ: Environ) -> ClusterResolver | None:
    """The resolver for a process that is to train alone, whatever its launcher says, or None.

    Raises:
        ClusterError: If the variable is neither 0 nor 1, or if JAX's variables, which are set for one program too, say otherwise.

    >>> find_single({"REPLICANT_SINGLE": "1", "PMI_RANK": "1", "PMI_SIZE": "2"}).membership()
    Membership(process 0 of 1)
    """
    told = first(environ, SINGLE)
    if told is None or told[1] == "0":
        return None
    if told[1] != "1":
        raise ClusterError(f"{SINGLE}={told[1]!r} is neither 0 nor 1. Set it to 1 in a process that is to train alone.")
    if first(environ, *_JAX_ID) is not None and number(environ, *_JAX_COUNT) != 1:
        said = ", ".join(facts(environ, *_JAX_ID, *_JAX_COUNT))
        raise ClusterError(
            f"{SINGLE}=1 says that this process trains alone, but {said} says that it is one of several. Unset either."
        )
    return _SingleClusterResolver(ClusterSpec({}))


def find_jax(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for processes that ``JAX_PROCESS_ID`` numbers, as in Kubeflow Trainer's JAX jobs, or None.

    Raises:
        ClusterError: If a variable is missing or contradicts another one.

    >>> find_jax({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1", "JAX_COORDINATOR_ADDRESS": "node1:1234"}).membership()
    Membership(process 1 of 2, coordinator node1:1234)
    """
    if first(environ, *_JAX_ID) is None:
        return None
    advice = f"Set it together with {' and '.join(facts(environ, *_JAX_ID))}."
    rank = number(environ, *_JAX_ID) or 0
    count = needed_number(environ, JAX, advice, *_JAX_COUNT)
    check_rank(JAX, "JAX_PROCESS_ID", rank, "JAX_NUM_PROCESSES", count)
    coordinator = told_coordinator(environ)
    if coordinator is None and count > 1:
        raise ClusterError(f"{JAX}: JAX_COORDINATOR_ADDRESS is not set. Set it to the host:port of process 0.")
    return _found(environ, rank, count, coordinator, because=facts(environ, *_JAX_ID, *_JAX_COUNT, "JAX_COORDINATOR_ADDRESS"))


def find_torchrun(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for processes that torchrun has started, or anything that sets the same variables, or None.

    torchrun's own store listens on ``MASTER_PORT``, so the coordinator takes a port after it, and a new one after each restart.

    Raises:
        ClusterError: If a variable is missing or contradicts another one.

    >>> environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x"}
    >>> find_torchrun(environ).membership()
    Membership(process 1 of 2, coordinator node1:29501)
    """
    if first(environ, "TORCHELASTIC_RUN_ID") is None and not (first(environ, "RANK") and first(environ, "WORLD_SIZE")):
        return None
    advice = "torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."
    rank = needed_number(environ, TORCHRUN, advice, "RANK")
    count = needed_number(environ, TORCHRUN, advice, "WORLD_SIZE")
    check_rank(TORCHRUN, "RANK", rank, "WORLD_SIZE", count)
    local = _local(environ, TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    coordinator = told_coordinator(environ)
    if coordinator is None and count > 1:
        host = first(environ, "MASTER_ADDR")
        if host is None:
            raise ClusterError(f"{TORCHRUN}: MASTER_ADDR is not set. {advice}")
        port = needed_number(environ, TORCHRUN, advice, "MASTER_PORT")
        coordinator = join_address("127.0.0.1" if local and local[1] == count else host[1], _port_behind(environ, port))
        split_address(coordinator, f"{TORCHRUN}: MASTER_ADDR={host[1]!r} with MASTER_PORT={port}")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    job_id = named_job(TORCHRUN, first(environ, "TORCHELASTIC_RUN_ID"))
    return _found(environ, rank, count, coordinator, local=local, because=facts(environ, *names), job_id=job_id)


def find_open_mpi(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for processes that Open MPI's mpirun has started, or None.

    Up to version 4, mpirun is ORTE. From version 5 it is PRRTE, which sets only the variables OMPI_* and PMIX_*. The coordinator is
    process 0, which mpirun starts on its own host first. If it does not, set ``JAX_COORDINATOR_ADDRESS``.

    Raises:
        ClusterError: If a variable is missing or contradicts another one.

    >>> environ = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-node1-977@1"}
    >>> find_open_mpi(environ).membership()
    Membership(process 1 of 2, coordinator node1:...)
    """
    namespace = first(environ, "PMIX_NAMESPACE")
    if first(environ, "OMPI_COMM_WORLD_RANK") is None:
        by_slurm = namespace is not None and namespace[1].startswith("slurm.")  # srun --mpi=pmix: Slurm's variables know more
        if first(environ, "PMIX_RANK") is None or by_slurm:
            return None
    rank_names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
    rank = needed_number(environ, OPEN_MPI, "", *rank_names)
    advice = "PMIx tells a process its rank, but not the number of processes: pass -x JAX_NUM_PROCESSES=N to the launcher."
    count = needed_number(environ, OPEN_MPI, advice, "OMPI_COMM_WORLD_SIZE", "JAX_NUM_PROCESSES")
    check_rank(OPEN_MPI, next(name for name in rank_names if environ.get(name)), rank, "OMPI_COMM_WORLD_SIZE", count)
    local = _local(environ, OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    coordinator = told_coordinator(environ)
    if coordinator is None and count > 1:
        host = "127.0.0.1" if local and local[1] == count else _mpirun_host(environ)
        job = namespace or first(environ, "OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI2") or ("", "")
        coordinator = join_address(host, coordinator_port(environ, port_of_job(job[1])))
        split_address(coordinator, f"{OPEN_MPI}: the host of mpirun")
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    more = ("PMIX_RANK", "PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")
    job_id = named_job(OPEN_MPI, namespace)
    return _found(environ, rank, count, coordinator, local=local, because=facts(environ, *names, *more), job_id=job_id)


def _mpirun_host(environ: Environ) -> str:
    """The host where mpirun runs, from ORTE's address or from the name that PRRTE gives a job."""
    uri = environ.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.search(r"tcp://([^,:;]+)|tcp6://\[([^,\]]+)", uri)
    if found is not None:
        return found[1] or found[2]
    named = re.fullmatch(r"prterun-(.+)-[0-9]+@[0-9]+", environ.get("PMIX_NAMESPACE", "").strip())
    if named is not None:
        return named[1]
    raise ClusterError(
        f"{OPEN_MPI}: neither OMPI_MCA_orte_hnp_uri nor PMIX_NAMESPACE says on which host mpirun runs. "
        "Pass -x JAX_COORDINATOR_ADDRESS=HOST:PORT to mpirun, with the address of process 0."
    )


def _local(environ: Environ, source: str, rank_name: str, size_name: str) -> tuple[int, int] | None:
    """The rank on this host and the number of processes there, or None unless both are known."""
    rank, size = number(environ, rank_name), number(environ, size_name)
    if rank is None or size is None:
        return None
    check_rank(source, rank_name, rank, size_name, size)
    return rank, size


def _port_behind(environ: Environ, master_port: int) -> int:
    """A port next to torchrun's own, or the same one if no torchrun agent uses it."""
    if first(environ, "TORCHELASTIC_RUN_ID") is None:
        return master_port
    step = 1 + (number(environ, "TORCHELASTIC_RESTART_COUNT") or 0)
    return master_port + step if master_port + step <= HIGHEST_PORT else master_port - step


def _found(
    environ: Environ,
    rank: int,
    count: int,
    coordinator: str | None,
    *,
    local: tuple[int, int] | None = None,
    because: tuple[str, ...],
    job_id: str | None = None,
) -> FoundClusterResolver:
    """The resolver for such processes. Only the coordinator's address is known, so the others' are None."""
    addresses = [coordinator, *[None] * (count - 1)]
    bind_address = told_bind_address(environ)
    return FoundClusterResolver(addresses, rank, local=local, bind_address=bind_address, because=because, job_id=job_id)
