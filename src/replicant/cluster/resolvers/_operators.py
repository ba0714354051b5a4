"""Kubernetes operators that start pods with variables of their own: Kubeflow's JAXJob and LeaderWorkerSet."""

from ...errors import ClusterError
from .._addresses import join_address, split_address
from ._environ import (
    Environ,
    check_rank,
    coordinator_port,
    facts,
    first,
    needed_number,
    told_bind_address,
    told_coordinator,
)
from ._kubernetes import DEFAULT_PORT
from ._resolver import FoundClusterResolver

JAX_JOB, LEADER_WORKER_SET = "JAXJob", "LeaderWorkerSet"

_JAX_JOB = ("PROCESS_ID", "NUM_PROCESSES", "COORDINATOR_ADDRESS", "COORDINATOR_PORT")
_LEADER_WORKER_SET = ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS")


def find_jax_job(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for the pods of a JAXJob, or None. Source: training-operator (v1), pkg/controller.v1/jax/envvar.go.

    Raises:
        ClusterError: If a variable is missing or contradicts another one.

    >>> environ = {"PROCESS_ID": "1", "NUM_PROCESSES": "2", "COORDINATOR_ADDRESS": "job-worker-0", "COORDINATOR_PORT": "6666"}
    >>> find_jax_job(environ).membership()
    Membership(process 1 of 2, coordinator job-worker-0:6666)
    """
    if not all(first(environ, name) for name in _JAX_JOB[:3]):  # common words: one of them alone may be anything
        return None
    host = environ["COORDINATOR_ADDRESS"].strip()
    if ":" not in host:
        host = join_address(host, needed_number(environ, JAX_JOB, "The operator sets it with the others.", "COORDINATOR_PORT"))
    split_address(host, f"{JAX_JOB}: COORDINATOR_ADDRESS with COORDINATOR_PORT")
    return _found(environ, JAX_JOB, _JAX_JOB, told_coordinator(environ) or host)


def find_leader_worker_set(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for the pods of one group of a LeaderWorkerSet, or None. Source: lws, api/leaderworkerset/v1.

    Raises:
        ClusterError: If a variable is missing or contradicts another one.

    >>> environ = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "job-0.job.ns"}
    >>> find_leader_worker_set(environ).membership()
    Membership(process 1 of 2, coordinator job-0.job.ns:55527)
    """
    if not all(first(environ, name) for name in _LEADER_WORKER_SET[:2]):
        return None
    port = coordinator_port(environ, DEFAULT_PORT)
    coordinator, leader = told_coordinator(environ, port), first(environ, "LWS_LEADER_ADDRESS")
    if coordinator is None and leader is None:
        raise ClusterError(f"{LEADER_WORKER_SET}: LWS_LEADER_ADDRESS is not set. Set JAX_COORDINATOR_ADDRESS to the leader's host.")
    return _found(environ, LEADER_WORKER_SET, _LEADER_WORKER_SET, coordinator or join_address(leader[1] if leader else "", port))


def _found(environ: Environ, source: str, names: tuple[str, ...], coordinator: str) -> FoundClusterResolver:
    """The resolver for pods that the first variable numbers and the second one counts."""
    rank = needed_number(environ, source, "", names[0])
    count = needed_number(environ, source, "", names[1])
    check_rank(source, names[0], rank, names[1], count)
    addresses = [coordinator, *[None] * (count - 1)]
    because = facts(environ, *names, "JAX_COORDINATOR_ADDRESS")
    return FoundClusterResolver(addresses, rank, bind_address=told_bind_address(environ), because=because)
