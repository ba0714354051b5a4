"""What was set for one program, and launchers that tell a process its rank, the number of processes and one address."""

from ...errors import ClusterError
from .._addresses import HIGHEST_PORT, join_address, split_address
from .._spec import ClusterSpec
from ._environ import (
    RENDEZVOUS,
    WHERE,
    Environ,
    check_rank,
    facts,
    first,
    local_place,
    named_job,
    needed_number,
    number,
    told_bind_address,
    told_coordinator,
    told_rendezvous,
)
from ._resolver import ClusterResolver, FoundClusterResolver, SimpleClusterResolver

JAX, TORCHRUN = "JAX variables", "torchrun"
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
    if told_coordinator(environ) is None and told_rendezvous(environ) is None and count > 1:
        raise ClusterError(f"{JAX}: JAX_COORDINATOR_ADDRESS is not set. Set {WHERE}.")
    names = (*_JAX_ID, *_JAX_COUNT, "JAX_COORDINATOR_ADDRESS", RENDEZVOUS)
    return _found(environ, rank, count, told_coordinator(environ), because=facts(environ, *names))


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
    local = local_place(environ, TORCHRUN, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    _check_pods(environ, rank, count)
    coordinator = told_coordinator(environ)
    if coordinator is None and told_rendezvous(environ) is None and count > 1:
        host = first(environ, "MASTER_ADDR")
        if host is None:
            raise ClusterError(f"{TORCHRUN}: MASTER_ADDR is not set. {advice} Or set {WHERE}.")
        port = needed_number(environ, TORCHRUN, advice, "MASTER_PORT")
        coordinator = join_address("127.0.0.1" if local and local[1] == count else host[1], _port_behind(environ, port))
        split_address(coordinator, f"{TORCHRUN}: MASTER_ADDR={host[1]!r} with MASTER_PORT={port}")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    names += (RENDEZVOUS,)
    job_id = named_job(TORCHRUN, first(environ, "TORCHELASTIC_RUN_ID"))
    return _found(environ, rank, count, coordinator, local=local, because=facts(environ, *names), job_id=job_id)


def _check_pods(environ: Environ, rank: int, count: int) -> None:
    """A PyTorchJob counts the processes that torchrun is to start in its pods. Without torchrun, there is one in each.

    Raises:
        ClusterError: If this program was started in place of torchrun. Source: training-operator v1, pytorch/envvar.go.
    """
    pods = environ.get("PET_NNODES", "").strip()
    if (
        first(environ, "TORCHELASTIC_RUN_ID")
        or not pods.isdigit()
        or int(pods) == count
        or number(environ, "PET_NODE_RANK") != rank
    ):
        return
    said = ", ".join(facts(environ, "WORLD_SIZE", "PET_NNODES", "PET_NPROC_PER_NODE"))
    raise ClusterError(
        f"{TORCHRUN}: by {said}, torchrun is to start several processes in each pod, but it did not start this one. Start the "
        "program with torchrun, or set nprocPerNode of the job to 1 for one process in each pod."
    )


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
    return FoundClusterResolver(
        [coordinator, *[None] * (count - 1)],
        rank,
        local=local,
        bind_address=told_bind_address(environ),
        because=because,
        job_id=job_id,
        rendezvous=told_rendezvous(environ) if count > 1 else None,
    )
