"""Asynchronous training with parameter servers: ``ParameterServerStrategy`` and the coordinator that schedules closures.

Users enter through ``_strategy``, which starts the cluster, and ``_coordinator``, which schedules closures. The rooms, from the
bottom: ``wire`` (messages), ``servers`` (variables; each push counts once, whichever process dies), ``workers`` (run closures),
``processes`` (which processes are alive), ``ray`` (processes on other machines), ``scheduling`` (which worker runs what),
``keras`` (everything that knows Keras).
"""

from ._coordinator import ClusterCoordinator
from ._lookup import embedding_lookup
from ._optax import OptaxOptimizer
from ._partitioners import FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner
from ._remote_value import RemoteValue
from .keras._tensorboard import StatsWriter
from .ray._transport import RayTransport

__all__ = [
    "ClusterCoordinator",
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "OptaxOptimizer",
    "RayTransport",
    "RemoteValue",
    "StatsWriter",
    "embedding_lookup",
]
