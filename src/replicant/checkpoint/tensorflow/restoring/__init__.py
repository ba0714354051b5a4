"""Restores TensorFlow's checkpoints into our objects: ``_match`` says which value is whose, and ``_restore`` restores them.

``_folder`` finds them where ours are saved, too.
"""

from .._prefix import index_of
from ._folder import highest_number, newest_of_tensorflow, tensorflow_checkpoints_in, warn_of_damage, warn_of_unnamed
from ._opened import Opened, opened_at
from ._restore import GraphRestore

__all__ = [
    "GraphRestore",
    "Opened",
    "highest_number",
    "index_of",
    "newest_of_tensorflow",
    "opened_at",
    "tensorflow_checkpoints_in",
    "warn_of_damage",
    "warn_of_unnamed",
]
