"""Replicant: the tf.distribute programming model on JAX and Keras 3.

A training program written for one device runs on every device you have, in lockstep and with the same numbers.

A *device* is one ``jax.Device``, a *replica* one copy of the model on one device, and a *worker* one process. The *global batch*
holds all examples of one step, and a *per-replica batch* is one replica's share of it. Code inside ``strategy.run`` is in *replica
context*, and other code under a strategy is in *cross-replica context*. A ``PerReplica`` value differs by replica, and a
``Mirrored`` value is the same on all replicas.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    from .errors import UnsupportedSystemError

    raise UnsupportedSystemError(
        "Replicant does not run on Windows: it locks files, and starts and ends processes, as Linux and macOS do. Install and run "
        "it in WSL 2, the Linux of Windows (`wsl --install`), where everything works that works on Linux."
    )

if "keras" not in sys.modules:
    os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads this at import; by default it looks for TensorFlow

from .runtime import _collector, _imports

with _collector.CollectionPaused(stays=True):
    _imports.install()
    from . import _function as _function  # with it comes JAX
    from . import _module as _module
    from . import strategies as strategies  # with these two come almost all other modules

# isort: split
from ._custom_gradient import custom_gradient
from ._function import function
from ._gradients import value_and_grad
from ._keep_updates import keep_updates_if
from ._losses import compute_average_loss, scale_regularization_loss
from ._module import Module
from ._remat import remat
from ._tape import GradientTape
from .checkpoint import (
    Checkpoint,
    CheckpointManager,
    CheckpointOptions,
    PreemptionCheckpointHandler,
    TerminationConfig,
    latest_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
    saved_model_variables,
)
from .kernels._control import install as _install_kernels
from .profiling import profile
from .profiling._of_program import start as _start_profile
from .replicas._collectives import ReduceOp
from .replicas._context import (
    ReplicaContext,
    get_replica_context,
    has_strategy,
    in_cross_replica_context,
)
from .replicas._copies import VariableAggregation, VariableSynchronization
from .replicas._values import DistributedValues, Mirrored, PerReplica
from .runtime._compile_cache import CompileCache, compile_cache
from .runtime._compile_cache import configure as _configure_compile_cache
from .runtime._watchdog import Watchdog
from .strategies import (
    CentralStorageStrategy,
    CommunicationImplementation,
    CommunicationOptions,
    FullyShardedStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    TPUStrategy,
    get_strategy,
    list_devices,
    run_elastic,
    set_virtual_devices,
)
from .strategies import install_default_strategy as _install_default_strategy
from .strategies._strategy import Strategy
from .variables._libraries import connect_keras_for_fit as _connect_keras_for_fit
from .variables._variable import Variable
from .variables.control_flow._install import follow_state as _follow_state

if TYPE_CHECKING:
    from . import cluster, coordinator, data, errors, export, keras, kernels, plan, random, summary, trackers
    from .coordinator._strategy import ParameterServerStrategy
    from .launch.show._run_report import RunReport, run_report
    from .trackers._run import track

_install_default_strategy()
_install_kernels()
_follow_state()
_configure_compile_cache()
_connect_keras_for_fit()
_start_profile(os.environ)

__version__ = "0.2.0"

__all__ = [
    "CentralStorageStrategy",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "CommunicationImplementation",
    "CommunicationOptions",
    "CompileCache",
    "DistributedValues",
    "FullyShardedStrategy",
    "GradientTape",
    "Mirrored",
    "MirroredStrategy",
    "Module",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PerReplica",
    "PreemptionCheckpointHandler",
    "ReduceOp",
    "ReplicaContext",
    "RunReport",
    "Strategy",
    "TPUStrategy",
    "TerminationConfig",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "Watchdog",
    "cluster",
    "compile_cache",
    "compute_average_loss",
    "coordinator",
    "custom_gradient",
    "data",
    "errors",
    "export",
    "function",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "keep_updates_if",
    "keras",
    "kernels",
    "latest_checkpoint",
    "list_devices",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "plan",
    "profile",
    "random",
    "remat",
    "run_elastic",
    "run_report",
    "saved_model_variables",
    "scale_regularization_loss",
    "set_virtual_devices",
    "summary",
    "track",
    "trackers",
    "value_and_grad",
]

_SUBMODULES = {"cluster", "coordinator", "data", "errors", "export", "keras", "kernels", "plan", "random", "summary", "trackers"}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "ParameterServerStrategy":  # few programs need it, and it imports a lot
        return importlib.import_module(f"{__name__}.coordinator._strategy").ParameterServerStrategy
    if name == "track":  # likewise
        return importlib.import_module(f"{__name__}.trackers._run").track
    if name in ("RunReport", "run_report"):  # likewise
        return getattr(importlib.import_module(f"{__name__}.launch.show._run_report"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
