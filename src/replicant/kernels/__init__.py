"""Lowerings that make training on CPUs fast: which of them are on, and how to switch them. See docs/kernels.md.

They are on by default when ``replicant`` is imported, and change only programs for CPUs. REPLICANT_KERNELS=0 leaves JAX as it is.
"""

from ._control import Status, disable, disabled, enable, status

__all__ = ["Status", "disable", "disabled", "enable", "status"]
