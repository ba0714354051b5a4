"""The variables of a SavedModel of TensorFlow, in the order in which its object lists them."""

import os

from ..errors import CheckpointError
from ..variables._variable import Variable
from ._inspect import source_at
from .tensorflow import ObjectGraph, TensorBundle

_LIST = "variables"
_VALUE = "VARIABLE_VALUE"


def saved_model_variables(path: str | os.PathLike[str]) -> list[Variable]:
    """Read the variables of a SavedModel, without TensorFlow and without the program that is in it.

    This is the counterpart of ``tf.saved_model.load(path).variables``, for models of Keras and other objects that had an attribute
    of this name. The variables are new ones, with the names that they had (``"dense/kernel"``), in the order of the list. They are
    made under the current strategy.

    Args:
        path: The folder of the SavedModel, a path or a URL.

    Raises:
        CheckpointError: If there is no SavedModel, if it lists no variables, or if it is damaged.

    To give the weights to a Keras model of the same code, call ``replicant.keras.load_weights(model, path)``.
    """
    source = source_at("saved_model_variables: path", path)
    bundle = source if isinstance(source, TensorBundle) else None
    graph = None if bundle is None else bundle.graph()
    listed = None if graph is None else graph.nodes[0].children.get(_LIST)
    if bundle is None or graph is None or listed is None:
        raise CheckpointError(
            f"{os.fspath(path)!r} is not a SavedModel whose object lists its variables. replicant.load_checkpoint(path) reads the "
            "values one by one, under the names that list_variables shows."
        )
    return [_variable(bundle, graph, node) for node in _in_order(graph, listed)]


def _in_order(graph: ObjectGraph, node: int) -> list[int]:
    children = graph.nodes[node].children
    return [children[name] for name in sorted((name for name in children if name.isdecimal()), key=int)]


def _variable(bundle: TensorBundle, graph: ObjectGraph, node: int) -> Variable:
    found = next((each for each in graph.nodes[node].attributes if each.name == _VALUE), None)
    if found is None:
        raise CheckpointError(f"{bundle.path}: {node} in the list of variables has no value, as resources have none.")
    return Variable(bundle.read(found.checkpoint_key), name=found.full_name)
