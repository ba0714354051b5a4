"""Kubernetes: an indexed Job numbers its pods, and a JobSet has several indexed Jobs."""

import os
import re

from ...errors import ClusterError
from ._environ import (
    RENDEZVOUS,
    Environ,
    check_rank,
    coordinator_port,
    facts,
    first,
    named_job,
    needed_number,
    number,
    told_bind_address,
    told_coordinator,
    told_rendezvous,
)
from ._resolver import FoundClusterResolver

SOURCE = "Kubernetes"
DEFAULT_PORT = 55527  # the port of JAX's own detection, which network policies may allow

_COUNT = ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT")


class KubernetesClusterResolver(FoundClusterResolver):
    """Finds the pods of an indexed Job or of a JobSet from their environment, without asking the cluster's API.

    Kubernetes sets ``JOB_COMPLETION_INDEX`` and ``HOSTNAME``. The number of pods and the coordinator come from the arguments, or
    from ``JAX_NUM_PROCESSES`` and ``JAX_COORDINATOR_ADDRESS``, which the job file sets. For a JobSet, the job file passes on
    ``JOBSET_NAME`` and ``REPLICATED_JOB_NAME`` (and ``PROCESSES_IN_JOB`` if there are several jobs). The coordinator is then the
    JobSet's first pod.

    Args:
        num_processes: The number of pods that train together.
        subdomain: The headless service that gives the pods their names. A JobSet's service has the name of the JobSet.
        port: The port of the coordinator.
        environ: The environment to read. By default the process's own.

    Raises:
        ClusterError: If a variable is missing or contradicts another one.

    >>> environ = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"}
    >>> KubernetesClusterResolver(num_processes=4, subdomain="pods", environ=environ).membership()
    Membership(process 1 of 4, coordinator train-0.pods:55527)
    """

    def __init__(
        self,
        num_processes: int | None = None,
        subdomain: str | None = None,
        port: int | None = None,
        *,
        environ: Environ | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        index = needed_number(
            environ, SOURCE, 'Set completionMode: "Indexed" in the Job, so that its pods are numbered.', "JOB_COMPLETION_INDEX"
        )
        count, counted_by = _count(environ, num_processes)
        per_job = number(environ, "PROCESSES_IN_JOB")
        job_index = _job_index(environ)
        if job_index and per_job is None:
            raise ClusterError(
                f"{SOURCE}: this is a pod of job {job_index} of a JobSet, but the number of pods of each job is not known. "
                "Set PROCESSES_IN_JOB to the job's completions."
            )
        if per_job is not None:
            check_rank(SOURCE, "JOB_COMPLETION_INDEX", index, "PROCESSES_IN_JOB", per_job)
        process_id = job_index * (per_job or 0) + index
        check_rank(SOURCE, "the process id", process_id, counted_by, count)
        default_port = coordinator_port(environ, DEFAULT_PORT) if port is None else port
        coordinator, rendezvous = None, told_rendezvous(environ) if count > 1 else None
        if count > 1 and rendezvous is None:
            coordinator = told_coordinator(environ, default_port) or f"{_first_pod(environ, index, subdomain)}:{default_port}"
        super().__init__(
            [None if rendezvous else coordinator or f"127.0.0.1:{default_port}", *[None] * (count - 1)],
            process_id,
            bind_address=told_bind_address(environ),
            because=facts(
                environ,
                "JOB_COMPLETION_INDEX",
                "HOSTNAME",
                *_COUNT,
                "JAX_COORDINATOR_ADDRESS",
                "JOBSET_NAME",
                "REPLICATED_JOB_NAME",
                "JOB_INDEX",
                "PROCESSES_IN_JOB",
                RENDEZVOUS,
            ),
            rendezvous=rendezvous,
            job_id=named_job(f"{SOURCE} JobSet", first(environ, "JOBSET_NAME")),
        )


def find(environ: Environ) -> KubernetesClusterResolver | None:
    """The resolver, if this process runs in a pod of an indexed Job, or None."""
    return KubernetesClusterResolver(environ=environ) if first(environ, "JOB_COMPLETION_INDEX") is not None else None


def _count(environ: Environ, num_processes: int | None) -> tuple[int, str]:
    if num_processes is not None:
        return num_processes, "num_processes"
    told = number(environ, *_COUNT)
    if told is not None:
        return told, next(name for name in _COUNT if environ.get(name, "").strip())
    replicas, per_job = number(environ, "REPLICATED_JOB_REPLICAS"), number(environ, "PROCESSES_IN_JOB")
    if replicas is not None and per_job is not None:
        return replicas * per_job, "REPLICATED_JOB_REPLICAS * PROCESSES_IN_JOB"
    raise ClusterError(
        f"{SOURCE}: JOB_COMPLETION_INDEX is set, but the number of pods that train together is not. Set JAX_NUM_PROCESSES to the "
        "Job's completions. If every pod trains on its own, set REPLICANT_SINGLE=1."
    )


def _job_index(environ: Environ) -> int:
    """The number of this pod's job in its JobSet, from JOB_INDEX or from the pod's name, JOBSET-JOB-INDEX-POD."""
    told = number(environ, "JOB_INDEX")
    jobset, replicated_job, hostname = (first(environ, name) for name in ("JOBSET_NAME", "REPLICATED_JOB_NAME", "HOSTNAME"))
    if jobset is None or replicated_job is None or hostname is None:
        return told or 0
    named = re.fullmatch(rf"{re.escape(jobset[1])}-{re.escape(replicated_job[1])}-([0-9]+)-[0-9]+", hostname[1])
    if named is None:
        return told or 0
    if told is not None and told != int(named[1]):
        raise ClusterError(f"{SOURCE}: JOB_INDEX={told}, but HOSTNAME={hostname[1]} is a pod of job {int(named[1])}.")
    return int(named[1])


def _first_pod(environ: Environ, index: int, subdomain: str | None) -> str:
    """The host name at which the other pods find pod 0."""
    jobset, replicated_job = first(environ, "JOBSET_NAME"), first(environ, "REPLICATED_JOB_NAME")
    if jobset is not None and replicated_job is not None:
        return f"{jobset[1]}-{replicated_job[1]}-0-0.{subdomain or jobset[1]}"
    hostname = first(environ, "HOSTNAME")
    advice = "Set JAX_COORDINATOR_ADDRESS to the name and port of pod 0, as in 'train-0.pods:55527'."
    if subdomain is None:
        raise ClusterError(
            f"{SOURCE}: neither JAX_COORDINATOR_ADDRESS nor a subdomain is given, so the other pods' names are not known. {advice}"
        )
    if hostname is None or not re.fullmatch(rf".+-{index}", hostname[1]):
        raise ClusterError(
            f"{SOURCE}: HOSTNAME={hostname[1] if hostname else ''} does not end in -{index}, as pod {index} of an indexed Job "
            f"does. {advice}"
        )
    return f"{hostname[1].rpartition('-')[0]}-0.{subdomain}"
