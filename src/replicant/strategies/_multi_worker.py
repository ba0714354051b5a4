"""MultiWorkerMirroredStrategy: one replica on each device of several processes."""

import json
from typing import Any

import jax

from ..cluster.exchange._world import World
from ..cluster.jax import _bootstrap
from ..cluster.resolvers._detect import detect
from ..cluster.resolvers._launchers import SINGLE
from ..cluster.resolvers._membership import Membership
from ..cluster.resolvers._resolver import ClusterResolver
from ..errors import AlreadyStartedError, ArgumentTypeError, ClusterError, DeviceError
from ..replicas._context import planning
from ..replicas._model_axis import Layouts, check_divides
from ..replicas._placement import Device, Placement
from ._communication import CommunicationOptions
from ._devices import have_threads
from ._mirrored import fused_by_default
from ._strategy import Strategy


class MultiWorkerMirroredStrategy(Strategy):
    """One replica on each device of each worker, in lockstep, with variables that are mirrored on all workers.

    Every worker runs the same program. Make the strategy first, right after the imports: it meets the other workers and connects
    JAX to them. A single process, where no variable says that there are several, behaves as under MirroredStrategy.

    Semantics: tf.distribute.MultiWorkerMirroredStrategy.

    Args:
        cluster_resolver: A ``ClusterResolver`` that tells who takes part; by default, what ``replicant.cluster.detect`` finds in
            the environment.
        communication_options: A ``CommunicationOptions``.
        strict: As for MirroredStrategy.

    Raises:
        ArgumentTypeError: If an argument has another type.
        ArgumentError: If the devices do not use the implementation in `communication_options`.
        AlreadyStartedError: If JAX has started, or if this process belongs to another group of workers already.
        ClusterError: If the workers cannot form one group. All workers raise it. Also if this process would train alone, although
            variables of a launcher say that it is one of several.
        UnreachableError: If a worker cannot be reached. All workers raise it.
        WorkerMismatchError: If the workers' strategies differ. All workers raise it.
        DeviceError: If JAX does not show the devices of all workers.

    >>> import replicant
    >>> strategy = replicant.MultiWorkerMirroredStrategy(replicant.cluster.SimpleClusterResolver(replicant.cluster.ClusterSpec({})))
    >>> strategy.topology.num_workers, strategy.is_chief
    (1, True)
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        strict: bool | None = None,
    ) -> None:
        if cluster_resolver is not None and not isinstance(cluster_resolver, ClusterResolver):
            raise ArgumentTypeError(
                f"{type(self).__name__}: cluster_resolver must be a replicant.cluster.ClusterResolver; got {cluster_resolver!r}."
            )
        options = communication_options or CommunicationOptions()
        if not isinstance(options, CommunicationOptions):
            raise ArgumentTypeError(
                f"{type(self).__name__}: communication_options must be a CommunicationOptions; got {communication_options!r}."
            )
        self._resolver = cluster_resolver or detected(type(self).__name__)
        super().__init__(meet(type(self).__name__, self._resolver.membership(), options), strict=strict)

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver that told the strategy about its cluster."""
        return self._resolver

    def __repr__(self) -> str:
        topology = self.topology
        own = [str(self.placement.devices[i]) for i in self.placement.local_ids]
        return f"{type(self).__name__}(worker {topology.worker_index} of {topology.num_workers}, {own})"


def detected(name: str) -> ClusterResolver:
    """Return what the environment tells.

    Raises:
        ClusterError: If it says that this process is the only one, but something else says that it is one of several.
        AlreadyStartedError: If it says so, but the program has called ``jax.distributed.initialize``.
    """
    found = detect()
    if found.doubt is not None and planning() is None:  # a plan does not train
        raise ClusterError(f"{name}: {found.doubt} `replicant doctor` shows what is found.")
    if found.num_processes == 1 and found.source != SINGLE and planning() is None:
        _bootstrap.check_not_connected()
    return found.resolver


def check_alone(name: str) -> None:
    """Check a strategy whose own resolver says that this process is the only one.

    Raises:
        ClusterError: If anything in the environment says that it is one of several.
        AlreadyStartedError: If the program has called ``jax.distributed.initialize``.
    """
    found = detect()
    if found.num_processes > 1:
        raise ClusterError(
            f"{name}: the TPU's variables describe one host, but {found.source} says that this is process {found.process_id} of "
            f"{found.num_processes} ({', '.join(found.because)}). Set TPU_WORKER_HOSTNAMES and TPU_WORKER_ID in each process. If "
            "it is to train alone, set REPLICANT_SINGLE=1."
        )
    detected(name)


def meet(
    name: str,
    membership: Membership,
    options: CommunicationOptions,
    platform: str | None = None,
    *,
    slices_from: int | None = None,
    model_parallel_size: int = 1,
    layouts: Layouts | None = None,
) -> Placement:
    """Meet the other workers, and return the devices of all; those of this process if it is the only one.

    `slices_from`, `model_parallel_size` and `layouts` are those of the Placement.
    """
    cuts: dict[str, Any] = {"slices_from": slices_from, "model_parallel_size": model_parallel_size, "layouts": layouts}
    plan = planning()
    if plan is not None:  # its devices need not exist
        check_divides(name, model_parallel_size, len(plan.devices))
        return Placement(plan.devices, **cuts)
    if membership.num_processes == 1:
        local = tuple(jax.local_devices(backend=platform))
        options.check_for(local[0].platform)
        check_divides(name, model_parallel_size, len(local))
        return Placement(local, fused=slices_from is None and fused_by_default(local), **cuts)
    have_threads()
    world = the_world(membership, options)
    local = jax.local_devices(backend=platform)
    options.check_for(local[0].platform)
    fact = {"strategy": name, "devices": len(local), "platform": local[0].platform, "bytes_per_pack": options.bytes_per_pack}
    problem = (
        "The workers' strategies differ. All need the same strategy, made with the same arguments, on equally many devices of one "
        "kind."
    )
    fact |= {} if slices_from is None else {"min_size": slices_from}
    if model_parallel_size > 1:
        fact |= {"model_parallel_size": model_parallel_size, "layout_map": None if layouts is None else layouts.rules}
    world.exchange.agree("strategy", json.dumps(fact), problem)
    check_divides(name, model_parallel_size, len(local), "devices of each worker")
    devices = _in_order(jax.devices(platform), len(local), world)
    return Placement(devices, world=world, bytes_per_pack=options.bytes_per_pack, **cuts)


def the_world(membership: Membership, options: CommunicationOptions) -> World:
    """Return the workers that this process has met. The first call meets them."""
    world = _bootstrap.world()
    if world is None:
        world = _bootstrap.start(membership)
    elif (world.process_id, world.num_processes) != (membership.process_id, membership.num_processes):
        raise AlreadyStartedError(
            f"This process is already {world.peers.membership!r} and cannot be {membership!r} as well. Make only one strategy over "
            "several workers per program."
        )
    if options.timeout_seconds is not None:
        world.exchange.set_timeout(options.timeout_seconds)
    return world


def _in_order(devices: list[Device], num_local: int, world: World) -> tuple[Device, ...]:
    """Order the devices worker after worker: their ids have gaps between processes."""
    ordered = tuple(sorted(devices, key=lambda device: (device.process_index, device.id)))
    if len(ordered) != num_local * world.num_processes:
        raise DeviceError(f"{world.num_processes} workers have {num_local} devices each, but JAX shows {len(ordered)} in all.")
    return ordered
