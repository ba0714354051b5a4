"""Kubernetes operators that start pods with variables of their own: Kubeflow's JAXJob and Trainer, LeaderWorkerSet, Volcano."""

import re

from ...errors import ClusterError
from .._addresses import join_address, split_address
from ._environ import (
    RENDEZVOUS,
    Environ,
    check_rank,
    coordinator_port,
    facts,
    first,
    needed_number,
    told_bind_address,
    told_coordinator,
    told_rendezvous,
)
from ._kubernetes import DEFAULT_PORT
from ._resolver import FoundClusterResolver

JAX_JOB, LEADER_WORKER_SET, TRAINER, VOLCANO = "JAXJob", "LeaderWorkerSet", "Kubeflow Trainer", "Volcano"

_JAX_JOB = ("PROCESS_ID", "NUM_PROCESSES", "COORDINATOR_ADDRESS", "COORDINATOR_PORT")
_TRAINER = ("PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_VOLCANO_INDEX = ("VC_TASK_INDEX", "VK_TASK_INDEX")
_VOLCANO_HOSTS = re.compile(r"VC_([A-Z0-9_]+)_HOSTS")
_VOLCANO_TASKS = ("CHIEF", "MASTER", "WORKER")  # those that train together, in the order of their processes
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
    if coordinator is None and leader is None and told_rendezvous(environ) is None:
        raise ClusterError(f"{LEADER_WORKER_SET}: LWS_LEADER_ADDRESS is not set. Set JAX_COORDINATOR_ADDRESS to the leader's host.")
    return _found(environ, LEADER_WORKER_SET, _LEADER_WORKER_SET, coordinator or join_address(leader[1] if leader else "", port))


def find_trainer(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for pods that Kubeflow's Trainer (v2) or PyTorchJob prepares for torchrun, without torchrun. Or None.

    A program that is started in place of torchrun is the only process of its pod, which is what JAX needs. Source: trainer,
    pkg/runtime/framework/plugins/torch.

    Raises:
        ClusterError: If the number of pods may change, if there are to be several processes in each, or if a variable is missing.

    >>> environ = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "auto", "PET_MASTER_ADDR": "job-node-0-0.job",
    ...            "PET_MASTER_PORT": "29500"}
    >>> find_trainer(environ).membership()
    Membership(process 1 of 2, coordinator job-node-0-0.job:29500)
    """
    if first(environ, *_TRAINER[:1]) is None or first(environ, *_TRAINER[1:2]) is None or first(environ, "RANK", "WORLD_SIZE"):
        return None
    pods, per_pod = environ["PET_NNODES"].strip(), first(environ, "PET_NPROC_PER_NODE")
    several = per_pod is not None and per_pod[1].isdigit() and per_pod[1] != "1"
    if ":" in pods or several:
        said = ", ".join(facts(environ, "PET_NNODES", "PET_NPROC_PER_NODE"))
        raise ClusterError(
            f"{TRAINER}: by {said}, {'there are several processes in each pod' if several else 'the number of pods may change'}, "
            "which needs torchrun: start the program with it. Without torchrun, a job has a fixed number of pods with one process "
            "each (numProcPerNode: 1)."
        )
    if needed_number(environ, TRAINER, "", "PET_NNODES") == 1:
        return _found(environ, TRAINER, (*_TRAINER, "PET_NPROC_PER_NODE"), "127.0.0.1:1")
    coordinator, host = told_coordinator(environ), first(environ, "PET_MASTER_ADDR")
    if coordinator is None and told_rendezvous(environ) is None:
        if host is None:
            raise ClusterError(f"{TRAINER}: PET_MASTER_ADDR is not set. The operator sets it with the others.")
        port = needed_number(environ, TRAINER, "The operator sets it with the others.", "PET_MASTER_PORT")
        coordinator = join_address(host[1], port)
        split_address(coordinator, f"{TRAINER}: PET_MASTER_ADDR with PET_MASTER_PORT")
    return _found(environ, TRAINER, (*_TRAINER, "PET_NPROC_PER_NODE"), coordinator or "")


def find_volcano(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for the pods of a Volcano job with its plugins env and svc, or None.

    The tasks chief, master and worker train together, in this order, or the only task. Source: volcano, docs/user-guide,
    how_to_use_env_plugin.md and how_to_use_svc_plugin.md.

    Raises:
        ClusterError: If the job has other tasks, too, or if it is not clear which pod this is.

    >>> environ = {"VC_TASK_INDEX": "1", "VC_WORKER_HOSTS": "job-worker-0.job,job-worker-1.job", "VC_WORKER_NUM": "2"}
    >>> find_volcano(environ).membership()
    Membership(process 1 of 2, coordinator job-worker-0.job:55527)
    """
    found = {name[1]: environ[name[0]] for name in map(_VOLCANO_HOSTS.fullmatch, environ) if name and environ[name[0]].strip()}
    if first(environ, *_VOLCANO_INDEX) is None or not found:
        return None
    index = needed_number(environ, VOLCANO, "", *_VOLCANO_INDEX)
    if len(found) > 1 and (others := sorted(set(found) - set(_VOLCANO_TASKS))):
        raise ClusterError(
            f"{VOLCANO}: the job has tasks with other names than chief, master and worker: {', '.join(others)}. Describe the "
            "cluster in TF_CONFIG, which has names for parameter servers and evaluators."
        )
    tasks = sorted(found, key=lambda task: _VOLCANO_TASKS.index(task) if task in _VOLCANO_TASKS else 0)
    pods = [(task, at, host.strip()) for task in tasks for at, host in enumerate(found[task].split(","))]
    hostname = environ.get("HOSTNAME", "").strip()
    mine = [rank for rank, (_, at, host) in enumerate(pods) if at == index and (len(tasks) == 1 or host.split(".")[0] == hostname)]
    lists = [f"VC_{task}_HOSTS" for task in tasks]
    if len(mine) != 1:
        said = ", ".join(facts(environ, *_VOLCANO_INDEX[:1], "HOSTNAME", *lists))
        raise ClusterError(f"{VOLCANO}: by {said}, it is not clear which pod of the job this is.")
    port = coordinator_port(environ, DEFAULT_PORT)
    told = told_coordinator(environ, port)
    addresses = [join_address(host, port) for _, _, host in pods]
    check_rank(VOLCANO, _VOLCANO_INDEX[0], mine[0], "the number of pods", len(pods))
    return FoundClusterResolver(
        [told, *[None] * (len(pods) - 1)] if told else list(addresses),
        mine[0],
        bind_address=told_bind_address(environ),
        because=facts(environ, *_VOLCANO_INDEX, *lists, "HOSTNAME", "JAX_COORDINATOR_ADDRESS"),
    )


def _found(environ: Environ, source: str, names: tuple[str, ...], coordinator: str) -> FoundClusterResolver:
    """The resolver for pods that the first variable numbers and the second one counts."""
    rank = needed_number(environ, source, "", names[0])
    count = needed_number(environ, source, "", names[1])
    check_rank(source, names[0], rank, names[1], count)
    return FoundClusterResolver(
        [coordinator or None, *[None] * (count - 1)],
        rank,
        bind_address=told_bind_address(environ),
        because=facts(environ, *names, "JAX_COORDINATOR_ADDRESS", RENDEZVOUS),
        rendezvous=told_rendezvous(environ) if count > 1 else None,
    )
