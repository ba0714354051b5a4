"""ParameterServerStrategy: variables on servers, workers that compute at their own pace."""

from collections.abc import Sequence
from typing import Any

import numpy as np

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
    """Asynchronous training: variables lie on parameter servers, workers read them, compute, and push changes.

    Args:
        cluster_resolver: says how many servers ("ps") and workers there are; all addresses must be loopback (any port, also 0),
            since the strategy starts these processes itself (with "ray" any addresses: Ray chooses the nodes). None: what
            TF_CONFIG says, or else 2 servers and 2 workers.
        variable_partitioner: ``partitioner(shape, dtype)`` that cuts variables into shards, such as ``MinSizePartitioner``. None:
            each variable is one piece.
        transport: "local" starts processes on this machine that share memory; "ray", or a ``RayTransport`` with options, lets Ray
            place them on several machines; "threads" plays them in this process, for tests. None is "local".

    Raises ClusterError for a cluster without servers or workers, with two chiefs or unknown jobs, or on other machines;
    ArgumentError for an unknown transport, ArgumentTypeError for a partitioner that cannot be called, LostProcessError if the
    processes do not start. Semantics: tf.distribute.ParameterServerStrategy.

    Use it with a ``replicant.coordinator.ClusterCoordinator``. Its processes end with this one, or when `close` is called.
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
                f"A ParameterServerStrategy was made inside a {role} process of another one, probably by a module that makes it "
                "when it is imported. Make the strategy in a function, or under `if __name__ == '__main__':`."
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
        self._coordinator: Any = None  # its only ClusterCoordinator, once there is one
        connect_libraries()

    @property
    def cluster_resolver(self) -> Any:
        """What told the strategy about its cluster."""
        return self._resolver

    def __repr__(self) -> str:
        return f"ParameterServerStrategy({self.shape.num_servers} servers, {self.shape.num_workers} workers)"

    def scope(self) -> Any:
        """Make this the current strategy: variables made in ``with strategy.scope():`` lie on the servers."""
        connect_libraries()
        return super().scope()

    def close(self) -> None:
        """End the servers and workers. Values of variables are lost with them. Safe to call again."""
        self.cluster.close()

    def place_variable(
        self, variable: Any, name: str, value: np.ndarray, *, trainable: bool, beside: VariableSpec | None = None
    ) -> VariableSpec:
        """Put a new variable on the servers; an optimizer's own goes where the variable `beside` it is."""
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
            raise ArgumentError("The optimizer was not made in strategy.scope() of this program.")
        with entered(self, None):
            prepare(self.cluster, variables)
