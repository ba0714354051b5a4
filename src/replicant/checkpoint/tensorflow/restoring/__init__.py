"""Restores TensorFlow's checkpoints into our objects: ``_match`` says which value is whose, and ``_restore`` restores them."""

from ._opened import Opened, opened_at
from ._restore import GraphRestore

__all__ = ["GraphRestore", "Opened", "opened_at"]
