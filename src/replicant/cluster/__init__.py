"""Who takes part: cluster descriptions, the resolvers that find them, and a detector that asks all resolvers.

Everything except `check_reachable` is a function of a mapping of environment variables. Nothing here starts JAX.
"""

from ._spec import ClusterSpec
from .meeting._reachable import check_proxies, check_reachable, proxy_variables
from .resolvers._detect import Detection, detect
from .resolvers._kubernetes import KubernetesClusterResolver
from .resolvers._membership import Membership, check_group
from .resolvers._resolver import ClusterResolver, SimpleClusterResolver
from .resolvers._slurm import SlurmClusterResolver
from .resolvers._tf_config import TFConfigClusterResolver
from .resolvers._tpu import TPUClusterResolver

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "Detection",
    "KubernetesClusterResolver",
    "Membership",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "check_group",
    "check_proxies",
    "check_reachable",
    "detect",
    "proxy_variables",
]
