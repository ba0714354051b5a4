"""Weights in checkpoints of TensorFlow that hold a graph of objects: the model is found in it, and walked side by side."""

from ...checkpoint.tensorflow import Node, ObjectGraph
from ...checkpoint.tensorflow.restoring._match import Match, value_key
from ...checkpoint.values._objects import Inventory
from ...checkpoint.weights._tensorflow import TensorFlowCheckpoint, name_of_key
from ...errors import CheckpointError
from ...variables._known import ref_of
from ._sources import Model, Source, Sources

_MODEL = "model"
_EXPORTED = "variables"  # the list of `model.export`
_RENAMED = {"depthwise_kernel": "kernel"}  # by Keras 3


def by_graph(model: Model, file: TensorFlowCheckpoint) -> Sources:
    """Give each weight the value of the same object in the graph.

    The model is its root, as ``save_weights`` and SavedModels have it, or else what the root calls ``model``. `model.export` writes
    a list of the variables without the model around it: their order is that of ``model.variables``.

    Raises:
        CheckpointError: If one object here is two in the graph, or the other way round, or if an exported list does not fit.
    """
    graph = file.graph
    assert graph is not None, "the caller looks"
    root = graph.nodes[0].children
    at_root = _matched(model, file, _under(graph))
    if at_root.found:
        return at_root
    if _MODEL in root:
        return _matched(model, file, graph)
    return _in_exported_order(model, file, graph) if _EXPORTED in root else at_root


def _matched(model: Model, file: TensorFlowCheckpoint, graph: ObjectGraph) -> Sources:
    objects = {_MODEL: model.keras}
    inventory = Inventory(objects)
    match = Match(file.opened, graph, objects, inventory, by_order=False)
    nodes = {inventory.items[key]: node for key, node in match.nodes.items()}
    found: dict[str, Source] = {}
    for name, weight in model.weights.items():
        node = nodes.get(ref_of(weight))
        key = None if node is None else value_key(graph.nodes[node])
        if key is not None:
            found[name] = Source(name_of_key(key))
    return Sources(found, "".join(f" {hint}" for hint in match.hints))


def _under(graph: ObjectGraph) -> ObjectGraph:
    """The graph with one more object around it, which calls its root ``model``."""
    end = len(graph.nodes)

    def moved(number: int) -> int:
        return number or end

    def with_moved(node: Node) -> Node:
        slots = tuple(slot._replace(variable=moved(slot.variable), node=moved(slot.node)) for slot in node.slots)
        return node._replace(children={name: moved(child) for name, child in node.children.items()}, slots=slots)

    root, *others = map(with_moved, graph.nodes)
    return ObjectGraph((Node({_MODEL: end}, (), ()), *others, root))


def _in_exported_order(model: Model, file: TensorFlowCheckpoint, graph: ObjectGraph) -> Sources:
    children = graph.nodes[graph.nodes[0].children[_EXPORTED]].children
    numbers = sorted(int(name) for name in children if name.isdecimal())
    keys = [value_key(graph.nodes[children[str(number)]]) for number in numbers]
    names = [name_of_key(key) for key in keys if key is not None]
    stored = [name for name in names if not _called(file, name).endswith("seed_generator_state")]
    weights = list(model.weights)
    if len(stored) != len(weights):
        raise CheckpointError(
            f"{file.path} lists {len(stored)} exported variables, and the model {model.keras.name!r} has {len(weights)} weights. "
            "Build the model that was exported, or pass by_name=True or rename=."
        )
    for name, weight in zip(stored, weights, strict=True):
        end = _called(file, name).rpartition("/")[2].removesuffix(":0")
        if _RENAMED.get(end, end) != model.weights[weight].name:
            raise CheckpointError(
                f"{file.path} does not fit the model {model.keras.name!r}: {name!r} was called {_called(file, name)!r}, and in its "
                f"place the model has {weight!r}. Build the model that was exported, or pass by_name=True or rename=."
            )
    return Sources({weight: Source(name) for name, weight in zip(stored, weights, strict=True)})


def _called(file: TensorFlowCheckpoint, name: str) -> str:
    return file.entry(name).label
