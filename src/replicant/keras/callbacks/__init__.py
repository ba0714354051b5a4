"""Callbacks for ``fit`` and ``evaluate`` that know about replicas. Keras's own callbacks work as well."""

from ._backup import BackupAndRestore
from ._preemption import PreemptionHandler
from ._step_watchdog import StepWatchdog
from ._tensorboard import TensorBoard
from ._terminate_on_nan import TerminateOnNaN
from ._track import Track

__all__ = ["BackupAndRestore", "PreemptionHandler", "StepWatchdog", "TensorBoard", "TerminateOnNaN", "Track"]
