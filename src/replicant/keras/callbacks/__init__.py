"""Callbacks for ``fit`` and ``evaluate`` that know about replicas. Keras's own callbacks work too."""

from ._backup import BackupAndRestore
from ._preemption import PreemptionHandler
from ._tensorboard import TensorBoard

__all__ = ["BackupAndRestore", "PreemptionHandler", "TensorBoard"]
