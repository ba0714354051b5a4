"""Checkpoints: the values of models, optimizers, metrics, variables and counters, kept in folders that are whole or not there.

``_objects`` names the values -> ``_values`` takes them to the host -> ``_storage`` writes and reads them -> ``_restore``
gives them back.
"""

from ._checkpoint import Checkpoint
from ._numbered import latest_checkpoint

__all__ = ["Checkpoint", "latest_checkpoint"]
