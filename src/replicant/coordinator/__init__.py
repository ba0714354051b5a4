"""Asynchronous training with parameter servers: ``ParameterServerStrategy`` and what schedules work on its workers.

Read in this order: ``_strategy`` (what a program makes) -> ``_coordinator`` and ``_dispatch`` (who does what) -> ``_queue`` (the
rules of that, pure) -> ``_worker`` -> ``_client`` (reads and pushes) -> ``_server``, ``_apply``, ``_ledger`` (each push once,
whoever dies) -> ``_cluster`` and ``_health`` (who is alive).
"""

from ._coordinator import ClusterCoordinator as ClusterCoordinator
from ._lookup import embedding_lookup as embedding_lookup
from ._optax import OptaxOptimizer as OptaxOptimizer
from ._partitioners import FixedShardsPartitioner as FixedShardsPartitioner
from ._partitioners import MaxSizePartitioner as MaxSizePartitioner
from ._partitioners import MinSizePartitioner as MinSizePartitioner
from ._remote_value import RemoteValue as RemoteValue
from .keras._tensorboard import StatsWriter as StatsWriter
from .ray._transport import RayTransport as RayTransport
