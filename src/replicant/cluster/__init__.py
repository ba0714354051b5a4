"""Who takes part: cluster descriptions, the resolvers that find them, and a detector that asks all resolvers.

Everything except `check_reachable` is a function of a mapping of environment variables. Nothing here starts JAX.
"""

from ._detect import Detection, detect
from ._kubernetes import KubernetesClusterResolver
from ._membership import Membership, check_group
from ._reach import check_proxies, check_reachable, proxy_variables
from ._resolver import ClusterResolver, SimpleClusterResolver
from ._slurm import SlurmClusterResolver
from ._spec import ClusterSpec
from ._tf_config import TFConfigClusterResolver
from ._tpu import TPUClusterResolver

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
