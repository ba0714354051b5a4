"""Checkpoints: the values of models, optimizers, metrics, variables and counters, in folders that are complete or do not exist.

``values/_objects`` names the values -> ``values/_values`` copies them to the host -> ``format/_storage`` writes and reads them ->
``values/_restore`` restores them. ``folders/_atomic_folder`` makes folders that are complete or do not exist, and ``folders/_lock``
keeps two programs apart. ``tensorflow`` reads what TensorFlow has written, and ``_inspect`` single values of either.
"""

from ._checkpoint import Checkpoint
from ._inspect import list_variables, load_checkpoint, load_variable
from ._manager import CheckpointManager
from ._numbered import latest_checkpoint
from ._options import CheckpointOptions
from ._preemption import PreemptionCheckpointHandler
from ._saved_model import saved_model_variables
from .policy._termination import TerminationConfig

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "PreemptionCheckpointHandler",
    "TerminationConfig",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "saved_model_variables",
]
