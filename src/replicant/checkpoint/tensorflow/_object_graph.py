"""The objects that a checkpoint was saved of, as TensorFlow writes them into it: who holds whom by which name, and which keys."""

from typing import Any, NamedTuple

from ..._protobuf import as_bytes, as_integer, as_text, fields
from .files._damage import damaged, require, shown

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"


class Attribute(NamedTuple):
    """A value of an object.

    Args:
        name: Its name in the object: ``"VARIABLE_VALUE"`` for the value of a variable.
        full_name: The name of the variable, which need not be its own alone.
        checkpoint_key: The key of its tensor.
    """

    name: str = ""
    full_name: str = ""
    checkpoint_key: str = ""


class Slot(NamedTuple):
    """A variable that an optimizer keeps for another one.

    Args:
        variable: The number of the node whose it is.
        name: What the optimizer calls it, as ``"m"``.
        node: The number of its own node.
    """

    variable: int = 0
    name: str = ""
    node: int = 0


class Node(NamedTuple):
    """An object.

    Args:
        children: The numbers of the nodes that it holds, by the names of its attributes.
        attributes: Its values.
        slots: The slots of an optimizer, before Keras 2.11.
    """

    children: dict[str, int]
    attributes: tuple[Attribute, ...]
    slots: tuple[Slot, ...]


class ObjectGraph(NamedTuple):
    """All objects; the first one is the root. Every number of a node in it is one of a node that is there."""

    nodes: tuple[Node, ...]


def graph_of(file: Any, message: memoryview) -> ObjectGraph:
    """Parse TrackableObjectGraph.

    Raises:
        MessageError: If it is something else.
        DamagedCheckpointError: If a node refers to one that is not there.
    """
    graph = ObjectGraph(tuple(_node(file, as_bytes(value)) for number, value in fields(message) if number == 1))
    require(bool(graph.nodes), file, "its graph of objects is empty")
    numbers = (
        number
        for node in graph.nodes
        for number in (*node.children.values(), *(each for slot in node.slots for each in (slot.variable, slot.node)))
    )
    wrong = next((number for number in numbers if not 0 <= number < len(graph.nodes)), None)
    if wrong is not None:
        raise damaged(file, f"its graph of objects refers to node {wrong} of {len(graph.nodes)}")
    return graph


def _node(file: Any, message: memoryview) -> Node:
    children: dict[str, int] = {}
    attributes, slots = [], []
    for number, value in fields(message):
        if number == 1:
            child = _record(as_bytes(value), {1: 0, 2: ""})
            require(child[2] not in children, file, f"an object in its graph holds two objects by the name {shown(child[2])}")
            children[child[2]] = child[1]
        elif number == 2:
            attributes.append(Attribute(*_record(as_bytes(value), {1: "", 2: "", 3: ""}).values()))
        elif number == 3:
            slots.append(Slot(*_record(as_bytes(value), {1: 0, 2: "", 3: 0}).values()))
    return Node(children, tuple(attributes), tuple(slots))


def _record(message: memoryview, defaults: dict[int, Any]) -> dict[int, Any]:
    """The integers and strings of a message, by the numbers of their fields."""
    found = dict(defaults)
    for number, value in fields(message):
        if number in found:
            found[number] = as_text(value) if isinstance(defaults[number], str) else as_integer(value)
    return found
