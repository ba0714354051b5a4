"""ParameterServerStrategy: variables on servers, workers that compute at their own pace."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _display
from ..cluster import ClusterResolver
from ..errors import ArgumentError, ContextError
from ..replicas._context import entered
from ..replicas._placement import Placement
from ._libraries import connect_libraries
from ._partitioners import VariablePartitioner, check_partitioner, num_shards
from ._server_strategy import ServerStrategy
from ._variable import ServerVariable
from .processes._cluster import Cluster
from .processes._environment import child_role
from .processes._events import Relay
from .processes._shape import ClusterShape, shape_of
from .processes._transport import Processes, Threads, Transport
from .ray._transport import RayTransport
from .servers._placing import cut_rows
from .servers._site import Site
from .servers._store import VariableSpec

_TRANSPORTS: dict[str, type[Any]] = {"local": Processes, "ray": RayTransport, "threads": Threads}


class ParameterServerStrategy(ServerStrategy):
    """Asynchronous training: variables live on parameter servers; workers read them, compute, and push changes.

    Use it with a ``replicant.coordinator.ClusterCoordinator``. Its processes end with this one, or when you call `close`.

    Args:
        cluster_resolver: says how many servers ("ps") and workers to start. All addresses must be loopback addresses, with any
            port, 0 included, since the strategy starts these processes itself. With "ray", addresses are ignored: Ray chooses the
            nodes. None uses TF_CONFIG, or else 2 servers and 2 workers.
        variable_partitioner: ``partitioner(shape, dtype)``, which cuts variables into shards, such as ``MinSizePartitioner``.
            None keeps each variable in one piece.
        transport: "local" starts processes on this machine that share memory. "ray", or a ``RayTransport`` with options, lets Ray
            place them on several machines. "threads" runs them as threads of this process, for tests. None is "local".

    Raises:
        ClusterError: if the cluster has no servers or no workers, two chiefs, unknown jobs, or addresses on other machines.
        ArgumentError: if the transport is unknown.
        ArgumentTypeError: if the resolver is not a ClusterResolver, or the partitioner is not callable.
        ContextError: inside a server or worker process of another strategy.
        LostProcessError: if the processes do not start.

    Semantics: tf.distribute.ParameterServerStrategy.

    >>> import replicant
    >>> from replicant.coordinator import FixedShardsPartitioner
    >>> strategy = replicant.ParameterServerStrategy(variable_partitioner=FixedShardsPartitioner(2), transport="threads")
    >>> with strategy.scope():
    ...     v = replicant.Variable([1.0, 2.0, 3.0])
    >>> [shard.tolist() for shard in v.variables]
    [[1.0, 2.0], [3.0]]
    >>> strategy.close()
    """

    variable_class = ServerVariable

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: VariablePartitioner | None = None,
        transport: str | Transport | None = None,
    ):
        super().__init__(Placement())
        role = child_role()
        if role is not None:
            raise ContextError(
                f"A ParameterServerStrategy was made inside a {role} process of another one, probably because importing a module "
                "makes it. Make the strategy in a function, or under `if __name__ == '__main__':`."
            )
        check_partitioner(variable_partitioner)
        self._resolver = cluster_resolver
        self._partitioner = variable_partitioner
        self.shape: ClusterShape = shape_of(cluster_resolver, transport)
        servers, workers = self.shape
        starter = _TRANSPORTS[transport or "local"]() if isinstance(transport, str | None) else transport
        self.relay = Relay()
        self.cluster = Cluster(servers, workers, starter, self.relay)
        self.site = Site(self.cluster.client, self._prepare_rule, is_coordinator=True)
        self.site.strategy = self
        self._coordinator: Any = None  # its only ClusterCoordinator, once made
        connect_libraries()

    @property
    def cluster_resolver(self) -> Any:
        """The resolver that the strategy was made with, or None."""
        return self._resolver

    def __repr__(self) -> str:
        return f"ParameterServerStrategy({self.shape.num_servers} servers, {self.shape.num_workers} workers)"

    def _repr_html_(self) -> str:
        state = [("closed", "its servers and workers have ended")] if self.cluster.closed else []
        facts = [("servers", str(self.shape.num_servers)), ("workers", str(self.shape.num_workers)), *state]
        return _display.strategy(type(self).__name__, [], facts)

    def scope(self) -> Any:
        """Make this the current strategy: variables made in ``with strategy.scope():`` live on the servers."""
        connect_libraries()
        return super().scope()

    def close(self) -> None:
        """End the servers and workers. The values of variables are lost. Calling it again does nothing."""
        self.cluster.close()

    def place_variable(
        self, variable: Any, name: str, value: np.ndarray, *, trainable: bool, beside: VariableSpec | None = None
    ) -> VariableSpec:
        """Put a new variable on the servers: a slot of an optimizer on those of `beside`, the variable it belongs to."""
        if beside is not None and beside.shape == value.shape:
            servers: Sequence[int] | None = [shard.server for shard in beside.shards]
            cuts: Any = [(shard.first, shard.end) for shard in beside.shards]
        else:
            count = num_shards(self._partitioner, value.shape, value.dtype)
            servers, cuts = None, None if count == 1 else cut_rows(value.shape[0], count)
        spec = self.cluster.create(name, value, trainable=trainable, servers=servers and list(servers), cuts=cuts)
        variable.attach(spec, self.site)
        return spec

    def _prepare_rule(self, optimizer: int, variables: list[int]) -> None:
        prepare = self.site.optimizers.get(optimizer)
        if prepare is None:
            raise ArgumentError(
                f"A closure applied optimizer {optimizer}, which was not made in the strategy.scope() of this program. Make the "
                "optimizer on the coordinator, in strategy.scope()."
            )
        with entered(self, None):
            prepare(self.cluster, variables)
