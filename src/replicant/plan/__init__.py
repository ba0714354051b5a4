"""Plans say what a training step will do on devices that this machine does not have.

``make_plan(program, topology)`` runs a program up to its first training step, with as many replicas as the topology has devices. It
compiles that step (for TPUs ahead of time, with libtpu on any CPU), and reports memory, operations, exchanges and time.
"""

from ._exchanges import Exchange
from ._make import make_plan
from ._memory import Memory
from ._plan import Plan

__all__ = ["Exchange", "Memory", "Plan", "make_plan"]
