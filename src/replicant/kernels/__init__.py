"""CPU lowerings that make training on CPUs fast: what is on, and how to switch it. See docs/kernels.md.

On by default when ``replicant`` is imported; they change programs for CPUs only. REPLICANT_KERNELS=0 leaves JAX as it is.
"""

from ._control import Status, disable, disabled, enable, status

__all__ = ["Status", "disable", "disabled", "enable", "status"]
