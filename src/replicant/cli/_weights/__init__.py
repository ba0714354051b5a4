"""The three actions of ``replicant checkpoint``."""

from ._convert import convert
from ._diff import diff
from ._show import show

__all__ = ["convert", "diff", "show"]
