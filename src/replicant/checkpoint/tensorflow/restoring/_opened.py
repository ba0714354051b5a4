"""A checkpoint of TensorFlow from which objects can be restored."""

from typing import NamedTuple

from ....errors import CheckpointError
from ...folders._locations import Place
from ...format._storage import is_own
from .. import ObjectGraph, TensorBundle, open_checkpoint


class Opened(NamedTuple):
    """The checkpoint, and the graph of the objects that were saved."""

    bundle: TensorBundle
    graph: ObjectGraph


def opened_at(place: Place) -> Opened | None:
    """Open the checkpoint of TensorFlow at a place: a prefix, a folder or a SavedModel.

    Returns:
        None if there is none, or if there is a checkpoint of our own.

    Raises:
        CheckpointError: If it cannot be read, is damaged, or holds only variables with names.
    """
    if is_own(place):
        return None
    found = open_checkpoint(place)
    if found is None:
        return None
    graph = found.graph()
    if graph is None or not isinstance(found, TensorBundle):
        raise CheckpointError(
            f"{found.path} was written by TensorFlow's Saver: it has variables by name, but no graph of objects that says whose "
            "they are. replicant.keras.load_weights takes them with a map of names, and replicant.load_checkpoint reads each "
            "of them."
        )
    return Opened(found, graph)
