"""LocalSGDStrategy: workers that train by themselves, and average their weights now and then."""

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import jax

from ..cluster._resolver import ClusterResolver
from ..cluster._world import World
from ..errors import ArgumentError, ArgumentTypeError
from ..replicas._context import require_cross_replica
from ..replicas._placement import Placement
from ..replicas._topology import Topology
from ._communication import CommunicationOptions
from ._devices import have_threads
from ._mirrored import fused_by_default
from ._multi_worker import detected, the_world
from ._outer_step import OuterStep
from ._rounds import Rounds
from ._strategy import Strategy


class LocalSGDStrategy(Strategy):
    """Workers that take `local_steps` steps by themselves, and then average what these have changed: local SGD, or DiLoCo.

    **The numbers are not those of one device.** All other strategies compute the steps of one device. Here, each worker's weights
    drift apart for `local_steps` steps, and what is trained is another trajectory, which is worse or better. In return, the workers
    exchange as many bytes in `local_steps` steps as otherwise in one. Use it where links are so slow that you would wait for them
    most of the time, and look at the accuracy.

    Each worker trains on its own examples and keeps its own optimizer state, random states and integers. The outer step averages
    the changes of the weights, weighted by the number of examples that each worker has seen in the round, and moves the weights by
    `outer_learning_rate` times that mean, with momentum. Floats that are not trained, such as the moving statistics of
    BatchNormalization, become the weighted mean. Inside a worker, its devices compute in lockstep as under MirroredStrategy.

    With ``local_steps=1``, the optimizer SGD without momentum, and the defaults of the outer step, the weights are those of one
    device.

    In ``fit``, every worker is given the same data in global batches, and trains on its rows of each. The round ends at the end of
    each epoch, so validation, ``evaluate`` and ``predict`` use weights that are the same on all workers; each of them computes
    alone. Metrics in training are those of the worker's own examples. A loop of your own takes its batches from
    ``strategy.rounds(variables).over(batches)``.

    Semantics: local SGD (Stich 2019), DiLoCo (Douillard et al. 2023).

    Args:
        local_steps: The number of steps of a round; 1 or more.
        outer_learning_rate: By what the mean change is multiplied. DiLoCo takes 0.7.
        outer_momentum: The momentum of the outer step, from 0 to less than 1. DiLoCo takes 0.9.
        nesterov: Whether that is Nesterov's.
        cluster_resolver: As for MultiWorkerMirroredStrategy.
        strict: As for MirroredStrategy.

    Raises:
        ArgumentTypeError: If an argument has another type.
        ArgumentError: If a number is out of its range.
        AlreadyStartedError, ClusterError, UnreachableError, WorkerMismatchError: As MultiWorkerMirroredStrategy does.

    >>> import replicant
    >>> alone = replicant.cluster.SimpleClusterResolver(replicant.cluster.ClusterSpec({}))
    >>> strategy = replicant.LocalSGDStrategy(local_steps=20, outer_learning_rate=0.7, outer_momentum=0.9, cluster_resolver=alone)
    >>> strategy.topology.num_workers, strategy.is_chief
    (1, True)
    """

    def __init__(
        self,
        local_steps: int,
        *,
        outer_learning_rate: float = 1.0,
        outer_momentum: float = 0.0,
        nesterov: bool = True,
        cluster_resolver: ClusterResolver | None = None,
        strict: bool | None = None,
    ):
        self.local_steps = _checked_steps(local_steps)
        self.outer = OuterStep(
            _checked_number("outer_learning_rate", outer_learning_rate, "positive", lambda x: x > 0),
            _checked_number("outer_momentum", outer_momentum, "from 0 to less than 1", lambda x: 0 <= x < 1),
            bool(nesterov),
        )
        if cluster_resolver is not None and not isinstance(cluster_resolver, ClusterResolver):
            raise ArgumentTypeError(
                f"LocalSGDStrategy: cluster_resolver must be a replicant.cluster.ClusterResolver; got {cluster_resolver!r}."
            )
        self._resolver = cluster_resolver or detected("LocalSGDStrategy")
        self._workers = self._met()
        local = tuple(jax.local_devices())
        super().__init__(Placement(local, fused=fused_by_default(local)), strict=strict)

    def _met(self) -> World | None:
        membership = self._resolver.membership()
        if membership.num_processes == 1:
            return None
        have_threads()
        world = the_world(membership, CommunicationOptions())
        world.apart = True
        fact = {"strategy": "LocalSGDStrategy", "local_steps": self.local_steps, "outer": repr(self.outer)}
        world.agree(
            "strategy",
            json.dumps(fact | {"devices": len(jax.local_devices())}),
            "The workers' strategies differ. All need the same strategy, made with the same arguments, on equally many devices.",
        )
        return world

    @property
    def workers(self) -> World | None:
        """The workers that meet in outer steps; None if there is only this one."""
        return self._workers

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver that told the strategy about its cluster."""
        return self._resolver

    @property
    def topology(self) -> Topology:
        """The numbers of workers and replicas: datasets are cut for all workers."""
        world = self._workers
        count = self._placement.num_replicas
        return Topology(replicas_per_worker=count) if world is None else Topology(world.num_processes, world.process_id, count)

    @property
    def is_chief(self) -> bool:
        """Whether this process is worker 0, or the only one."""
        return self._workers is None or self._workers.is_chief

    def own_folder(self, folder: str | os.PathLike[str]) -> str:
        """Return the folder in `folder` for this worker's checkpoints: each worker saves its own state.

        >>> import replicant
        >>> alone = replicant.cluster.SimpleClusterResolver(replicant.cluster.ClusterSpec({}))
        >>> replicant.LocalSGDStrategy(local_steps=2, cluster_resolver=alone).own_folder("checkpoints")
        'checkpoints/worker-0'
        """
        return f"{os.fspath(folder).rstrip('/')}/worker-{self.topology.worker_index}"

    def rounds(self, variables: Sequence[Any]) -> Rounds:
        """Make the rounds of a custom loop. Make them once, before the first step, and loop over them in each epoch.

        Args:
            variables: The variables of the model: those that are trained, and others, such as ``model.variables``.

        Returns:
            The Rounds. Give them to the ``Checkpoint``, together with model and optimizer.

        Raises:
            ArgumentTypeError: If something else than variables is given.
            ArgumentError: If no variable is trained.
            ContextError: Inside ``run``.

        >>> import replicant, numpy as np
        >>> alone = replicant.cluster.SimpleClusterResolver(replicant.cluster.ClusterSpec({}))
        >>> strategy = replicant.LocalSGDStrategy(local_steps=2, cluster_resolver=alone)
        >>> with strategy.scope():
        ...     weight = replicant.Variable(0.0)
        >>> rounds = strategy.rounds([weight])
        >>> for batch in rounds.over(replicant.data.Dataset.range(6).batch(2)):
        ...     _ = weight.assign_add(float(np.mean(batch)))
        >>> print(weight.numpy(), rounds.num_rounds)
        7.5 2
        """
        require_cross_replica(self, "rounds()")
        with self.scope():
            return Rounds(list(variables), self.local_steps, self.outer, self._workers)

    def __repr__(self) -> str:
        devices = [str(device) for device in self._placement.devices]
        topology = self.topology
        return (
            f"LocalSGDStrategy(worker {topology.worker_index} of {topology.num_workers}, {self.local_steps} local steps, {devices})"
        )


def _checked_steps(steps: Any) -> int:
    if not isinstance(steps, int) or isinstance(steps, bool):
        raise ArgumentTypeError(f"LocalSGDStrategy: local_steps must be an int; got {steps!r}.")
    if steps < 1:
        raise ArgumentError(f"LocalSGDStrategy: local_steps must be at least 1; got {steps}.")
    return steps


def _checked_number(name: str, value: Any, rule: str, holds: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"LocalSGDStrategy: {name} must be a number; got {value!r}.")
    if not (math.isfinite(value) and holds(value)):
        raise ArgumentError(f"LocalSGDStrategy: {name} must be {rule}; got {value!r}.")
    return float(value)
