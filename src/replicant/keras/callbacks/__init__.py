"""Callbacks for ``fit`` and ``evaluate`` that know about replicas. Keras's own callbacks work too."""

from ._tensorboard import TensorBoard

__all__ = ["TensorBoard"]
