"""TensorFlow's checkpoints, read without TensorFlow.

``_open`` finds what is at a path. A bundle (``_bundle``) is an index in a table and files of raw bytes; ``_saver_file`` is the
format before it, a table with the values. What is in the files is parsed in ``files``. Nothing in these formats is executable.
Anything can be in a file, so every number is checked before it is used, and no memory is taken for what a file only claims.
"""

from ._bundle import TensorBundle
from ._object_graph import Attribute, Node, ObjectGraph, Slot
from ._open import open_checkpoint
from ._saver_file import SaverFile
from ._state import State, checkpoint_state

__all__ = [
    "Attribute",
    "Node",
    "ObjectGraph",
    "SaverFile",
    "Slot",
    "State",
    "TensorBundle",
    "checkpoint_state",
    "open_checkpoint",
]
