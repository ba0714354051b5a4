"""TPU VMs: the hosts of one or more slices, from the variables that GKE and the TPU runtime use."""

import os

from ...errors import ClusterError
from .._addresses import join_address
from ._environ import (
    Environ,
    check_rank,
    coordinator_port,
    facts,
    first,
    needed_number,
    number,
    told_bind_address,
    told_coordinator,
)
from ._resolver import FoundClusterResolver

SOURCE = "TPU"
DEFAULT_PORT = 8482  # the port of JAX's own detection, which firewalls may allow

_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")
_WORKER = ("TPU_WORKER_ID", "CLOUD_TPU_TASK_ID")
_SLICES = ("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS")


class TPUClusterResolver(FoundClusterResolver):
    """Finds the hosts of a TPU slice, or of several slices that Megascale joins.

    It replaces ``tf.distribute.cluster_resolver.TPUClusterResolver``. The program runs on the TPU VMs themselves, one process on
    each, so there is nothing to connect to. The resolver reads ``TPU_WORKER_HOSTNAMES`` (or ``TPU_PROCESS_ADDRESSES``),
    ``TPU_WORKER_ID`` and ``MEGASCALE_*``, which GKE sets, and asks no metadata server. Without these variables, there is one host.

    Args:
        tpu: None, ``""`` or ``"local"``, for programs that give this argument.
        environ: The environment to read. By default the process's own.

    Raises:
        ClusterError: If ``tpu`` names another machine, or if variables are missing or contradict each other.

    >>> environ = {"TPU_WORKER_HOSTNAMES": "host-0,host-1", "TPU_WORKER_ID": "1"}
    >>> TPUClusterResolver(environ=environ).membership()
    Membership(process 1 of 2, coordinator host-0:8482)
    """

    def __init__(self, tpu: str | None = None, *, environ: Environ | None = None) -> None:
        environ = os.environ if environ is None else environ
        if tpu not in (None, "", "local"):
            raise ClusterError(
                f"TPUClusterResolver: tpu={tpu!r} names a TPU to connect to, but the program runs on the TPU VMs themselves. "
                "Start it on each of them, and leave tpu out."
            )
        hosts = _hosts(environ)
        rank_in_slice = 0
        if len(hosts) > 1:
            rank_in_slice = needed_number(environ, SOURCE, f"It says which of {len(hosts)} hosts this is.", *_WORKER)
        else:
            rank_in_slice = number(environ, *_WORKER) or 0
        check_rank(SOURCE, _WORKER[0], rank_in_slice, "the number of hosts", len(hosts))
        slices = number(environ, "MEGASCALE_NUM_SLICES") or 1
        slice_id = number(environ, "MEGASCALE_SLICE_ID") or 0
        check_rank(SOURCE, "MEGASCALE_SLICE_ID", slice_id, "MEGASCALE_NUM_SLICES", slices)
        port = coordinator_port(environ, DEFAULT_PORT)
        addresses: list[str | None] = [join_address(host, port) for host in hosts]
        if slices > 1:
            leader = told_coordinator(environ, port) or join_address(_leader(environ), port)
            addresses = [leader, *[None] * (slices * len(hosts) - 1)]
        elif len(hosts) > 1:
            self._coordinator_address = told_coordinator(environ, port)
        super().__init__(
            addresses,
            slice_id * len(hosts) + rank_in_slice,
            local=(0, 1),
            bind_address=told_bind_address(environ),
            because=facts(environ, *_HOSTS, *_WORKER, *_SLICES) or ("no TPU_WORKER_HOSTNAMES: one host",),
        )


def find(environ: Environ) -> TPUClusterResolver | None:
    """The resolver, if the environment describes a slice, or None."""
    several_slices = (number(environ, "MEGASCALE_NUM_SLICES") or 1) > 1
    return TPUClusterResolver(environ=environ) if several_slices or first(environ, *_HOSTS) is not None else None


def _hosts(environ: Environ) -> list[str]:
    """The hosts of this slice, in the order of the workers."""
    found = first(environ, *_HOSTS)
    if found is None:
        return ["127.0.0.1"]
    name, value = found
    hosts = [host.strip() for host in value.split(",")]
    if not all(hosts):
        raise ClusterError(f"{SOURCE}: {name}={value!r} has an empty name: write host names with commas between them.")
    if name == "TPU_PROCESS_ADDRESSES":
        hosts = [host.rpartition(":")[0] if host.count(":") == 1 else host for host in hosts]
    if len(set(hosts)) < len(hosts):
        raise ClusterError(f"{SOURCE}: {name}={value!r} names a host twice.")
    return hosts


def _leader(environ: Environ) -> str:
    """The host of process 0, in slice 0."""
    found = first(environ, "MEGASCALE_COORDINATOR_ADDRESS")
    if found is None:
        raise ClusterError(
            f"{SOURCE}: MEGASCALE_NUM_SLICES={environ['MEGASCALE_NUM_SLICES']}, but MEGASCALE_COORDINATOR_ADDRESS is not set. Set "
            "it to the address of host 0 of slice 0."
        )
    return found[1].rpartition(":")[0] if found[1].count(":") == 1 else found[1]
