"""Asynchronous training with parameter servers: ``ParameterServerStrategy`` and what schedules work on its workers.

Users enter through ``_strategy``, which starts the cluster, and ``_coordinator``, which schedules functions. The rooms, from the
bottom: ``wire`` (messages), ``servers`` (variables; each push counts once, whoever dies), ``workers`` (run functions),
``processes`` (who is alive), ``ray`` (processes on other machines), ``scheduling`` (who does what), ``keras`` (what knows Keras).
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
