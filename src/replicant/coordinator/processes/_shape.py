"""How many servers and workers a strategy starts, from a resolver, TF_CONFIG or the default."""

import os
from typing import Any, NamedTuple

from ...cluster import ClusterResolver, ClusterSpec, TFConfigClusterResolver
from ...cluster._addresses import is_loopback
from ...errors import ArgumentError, ArgumentTypeError, ClusterError

_JOBS = ("chief", "worker", "ps", "evaluator")
_DEFAULT = (2, 2)


class ClusterShape(NamedTuple):
    """How many servers and workers there are."""

    num_servers: int
    num_workers: int


def shape_of(resolver: ClusterResolver | None, transport: Any) -> ClusterShape:
    """The servers and workers to start. Raises the errors that ParameterServerStrategy documents."""
    if isinstance(transport, str) and transport not in ("local", "ray", "threads"):
        raise ArgumentError(f"transport must be 'local', 'ray' or 'threads'. Received: {transport!r}.")
    if resolver is None:
        if not os.environ.get("TF_CONFIG"):
            return ClusterShape(*_DEFAULT)
        resolver = TFConfigClusterResolver()
        if not resolver.cluster_spec():
            return ClusterShape(*_DEFAULT)
    if not isinstance(resolver, ClusterResolver):
        raise ArgumentTypeError(
            f"cluster_resolver must be a ClusterResolver, such as "
            f"SimpleClusterResolver(ClusterSpec({{'ps': [...], 'worker': [...]}})). Received: {resolver!r}."
        )
    spec = resolver.cluster_spec()
    check_jobs(spec)
    if resolver.task_type in ("worker", "ps"):
        raise ClusterError(
            f"This process is {resolver.task_type} {resolver.task_id} of the cluster {spec!r}, but the coordinator starts "
            "workers and servers itself. Run the program once, as the chief: with task type 'chief', or without one."
        )
    if transport in (None, "local", "threads"):
        _check_local(spec)
    return ClusterShape(spec.num_tasks("ps"), spec.num_tasks("worker"))


def check_jobs(spec: ClusterSpec) -> None:
    """Raise ClusterError unless there are servers and workers, at most one chief, and nothing else."""
    unknown = sorted(set(spec.jobs) - set(_JOBS))
    if unknown:
        raise ClusterError(
            f"The cluster has an unknown job {unknown[0]!r}. Use only {', '.join(map(repr, _JOBS))}. Received: {spec!r}."
        )
    if "ps" not in spec.jobs or not spec.num_tasks("ps"):
        raise ClusterError(f"There must be at least one server: the cluster needs a job 'ps'. Received: {spec!r}.")
    if "worker" not in spec.jobs or not spec.num_tasks("worker"):
        raise ClusterError(f"There must be at least one worker: the cluster needs a job 'worker'. Received: {spec!r}.")
    if "chief" in spec.jobs and spec.num_tasks("chief") > 1:
        raise ClusterError(f"There must be at most one chief, which is the coordinator. Received: {spec!r}.")


def _check_local(spec: ClusterSpec) -> None:
    for job in ("ps", "worker"):
        for address in spec.job_tasks(job):
            if address is not None and not is_loopback((address.rpartition(":")[0] or address).strip("[]")):
                raise ClusterError(
                    f"The {job} at {address} is on another machine, but servers and workers are processes of this one. Use "
                    "addresses such as '127.0.0.1:0', or transport='ray' to use several machines."
                )
