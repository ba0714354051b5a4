"""Checkpoints of TensorFlow, as files of weights."""

import numpy as np

from ..tensorflow import SaverFile, TensorBundle
from ..tensorflow._object_graph import GRAPH_KEY
from ._stored import Entry, WeightsFile

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # the end of the key of a variable


class TensorFlowCheckpoint(WeightsFile):
    """The tensors of a checkpoint, each named by its key, without what the keys of all variables end with.

    Attributes:
        graph: The graph of the objects that were saved; None for checkpoints of TensorFlow 1, which have names only.
    """

    def __init__(self, opened: TensorBundle | SaverFile) -> None:
        self.path, self.format, self.opened = opened.path, "a checkpoint of TensorFlow", opened
        self.graph = opened.graph()
        nodes = () if self.graph is None else self.graph.nodes
        labels = {each.checkpoint_key: each.full_name for node in nodes for each in node.attributes}
        self._keys = {name_of_key(key): key for key in opened.keys() if key != GRAPH_KEY}  # noqa: SIM118 - it is not a dict
        self.entries = {
            name: Entry(name, opened.shape(key), opened.dtype(key), labels.get(key, "")) for name, key in self._keys.items()
        }

    def read(self, name: str) -> np.ndarray:
        self.entry(name)
        return self.opened.read(self._keys[name])

    def close(self) -> None:
        self.opened.close()


def name_of_key(key: str) -> str:
    """Return what the tensor with this key is called here.

    >>> name_of_key("model/kernel/.ATTRIBUTES/VARIABLE_VALUE")
    'model/kernel'
    """
    return key.removesuffix(_VALUE)
