"""Training services of clouds, which list the hosts in JSON: Amazon SageMaker and Vertex AI."""

import re
from typing import Any

from ..._untrusted_json import read_json
from ...errors import ClusterError
from .._addresses import join_address, split_address
from .._spec import MOST_TASKS
from ._environ import Environ, check_rank, coordinator_port, facts, first, told_bind_address, told_coordinator
from ._kubernetes import DEFAULT_PORT
from ._resolver import FoundClusterResolver

SAGEMAKER, VERTEX_AI = "SageMaker", "Vertex AI"
MOST_BYTES = 1 << 23  # of a variable


def find_sagemaker(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for one process on each host of a SageMaker training job, or None.

    The hosts are numbered in the order of ``SM_HOSTS``, which is sorted. Source: sagemaker-training-toolkit, environment.py.

    Raises:
        ClusterError: If SM_HOSTS is not a list of names, or if SM_CURRENT_HOST is not one of them.

    >>> find_sagemaker({"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}).membership()
    Membership(process 1 of 2, coordinator algo-1:55527)
    """
    if first(environ, "SM_HOSTS") is None or (current := first(environ, "SM_CURRENT_HOST")) is None:
        return None
    hosts = json_variable(environ, "SM_HOSTS")
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts) or len(set(hosts)) != len(hosts):
        raise ClusterError(
            f'{SAGEMAKER}: SM_HOSTS={environ["SM_HOSTS"]} is not a list of different names, as in ["algo-1", "algo-2"].'
        )
    if current[1] not in hosts:
        raise ClusterError(f"{SAGEMAKER}: SM_CURRENT_HOST={current[1]} is not in SM_HOSTS={environ['SM_HOSTS']}.")
    port = coordinator_port(environ, DEFAULT_PORT)
    addresses = [join_address(host, port) for host in hosts]
    return _found(environ, SAGEMAKER, addresses, hosts.index(current[1]), port, "SM_HOSTS", "SM_CURRENT_HOST")


def find_vertex_ai(environ: Environ) -> FoundClusterResolver | None:
    """The resolver for the replicas of a Vertex AI training job that ``CLUSTER_SPEC`` lists, or None.

    Worker pool 0 is the chief, and pool 1 the other workers. Source: "The format of CLUSTER_SPEC" in Vertex AI's documentation.

    Raises:
        ClusterError: If a replica has no address, or if it is not said which one this is, or if there are other pools.

    >>> find_vertex_ai({"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}, '
    ...                                 '"task": {"type": "workerpool1", "index": 0}}'}).membership()
    Membership(process 1 of 2, coordinator a:2222)
    """
    try:
        config = json_variable(environ, "CLUSTER_SPEC")
    except ClusterError:  # the name may stand for something else
        return None
    pools = config.get("cluster") if isinstance(config, dict) else None
    if not isinstance(pools, dict) or not pools or not all(re.fullmatch("workerpool[0-9]", pool) for pool in pools):
        return None
    others = [pool for pool in pools if pool not in ("workerpool0", "workerpool1") and pools[pool]]
    if others:
        raise ClusterError(
            f"{VERTEX_AI}: CLUSTER_SPEC has {', '.join(others)}, for parameter servers or evaluators. Describe the cluster in "
            "TF_CONFIG, which has names for these jobs."
        )
    tasks = [(pool, index, address) for pool in sorted(pools) for index, address in enumerate(_addresses(pools, pool))]
    task: Any = config.get("task")
    own: Any = (task.get("type"), task.get("index")) if isinstance(task, dict) else None
    at = [(pool, index) for pool, index, _ in tasks]
    if own not in at:
        counts = ", ".join(f"{len(pools[pool] or [])} in {pool}" for pool in sorted(pools))
        raise ClusterError(f"{VERTEX_AI}: the task in CLUSTER_SPEC, {task!r}, is not one of the cluster's replicas: {counts}.")
    return _found(environ, VERTEX_AI, [address for _, _, address in tasks], at.index(own), None, "CLUSTER_SPEC")


def json_variable(environ: Environ, name: str) -> Any:
    """The value of a variable with JSON.

    Raises:
        ClusterError: If it is not JSON.
    """
    try:
        return read_json(environ.get(name, ""), MOST_BYTES)
    except ValueError as error:
        raise ClusterError(f"{name} is not JSON: {error}.") from None


def _addresses(pools: dict[str, Any], pool: str) -> list[str]:
    """The addresses of the replicas in a pool."""
    addresses = pools[pool] or []
    if not isinstance(addresses, list) or len(addresses) > MOST_TASKS or not all(isinstance(each, str) for each in addresses):
        raise ClusterError(f"{VERTEX_AI}: {pool} in CLUSTER_SPEC is not a list of addresses, as in ['host:2222'].")
    for index, address in enumerate(addresses):
        split_address(address, f"{VERTEX_AI}: task {index} of {pool} in CLUSTER_SPEC")
    return addresses


def _found(environ: Environ, source: str, addresses: list[str], rank: int, port: int | None, *names: str) -> FoundClusterResolver:
    check_rank(source, "the process id", rank, "the number of hosts", len(addresses))
    told = told_coordinator(environ, port)
    return FoundClusterResolver(
        [told, *[None] * (len(addresses) - 1)] if told else list(addresses),
        rank,
        bind_address=told_bind_address(environ),
        because=facts(environ, *names, "JAX_COORDINATOR_ADDRESS"),
    )
