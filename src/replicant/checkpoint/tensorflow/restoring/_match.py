"""Which values of a TensorFlow checkpoint belong to which of our objects: both graphs of objects are walked side by side.

An object is the same on both sides if the same names lead to it from the root. Where Keras has renamed a part of an object, the
kind of the object knows (``ObjectKind.part``). Nothing is matched by its shape, its place in a file, or the name of its variable.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ....errors import CheckpointError
from ....variables._known import is_variable, ref_of
from ....variables._ref import Ref
from ...values._objects import Inventory, ObjectKind, kind_of, parts_of
from ...values._states import Stateful
from .._object_graph import Node, ObjectGraph

VALUE, TABLE = "VARIABLE_VALUE", "table"
ROOT = "root"  # what Checkpoint(root=model) calls the object whose parts are the first in the graph
COUNTER = "save_counter"  # what TensorFlow's Checkpoint counts, as ours does


class _Step(NamedTuple):
    """A node of the graph, and the object that it is matched with.

    key: the key of the object in the inventory, as long as containers alone lead to it. owner: that of the layer that it is in.
    path: the names that lead to the node.
    """

    node: int
    item: Any
    key: str | None
    owner: str | None
    path: str


class Later(NamedTuple):
    """An object that is matched once all others are: an optimizer, whose slots belong to variables of models."""

    kind: ObjectKind
    item: Any
    node: int
    path: str


class Match:
    """The values in a graph of TensorFlow's objects, and the variables, numbers and arrays here that they belong to.

    Args:
        bundle: The checkpoint, for shapes and a few numbers.
        graph: The graph of objects in it.
        objects: Our objects, by name.
        inventory: What is in them.
        by_order: Whether the variables of an optimizer may be matched by their order, where nothing else tells whose they are.

    Attributes:
        nodes: The numbers of nodes, by the keys of the inventory that they belong to.
        more_keys: Keys of the inventory that need no value: those of variables that have one under another key as well.
        waiting: The paths of values that objects wait for which are not built yet, by the key of the object.
        paths: The names that lead to a node, from the root; those through our objects where there are such.
        hints: What a message about missing values should say.

    Raises:
        CheckpointError: If one object here is two in the checkpoint, or the other way round.
    """

    def __init__(
        self,
        bundle: Any,
        graph: ObjectGraph,
        objects: Mapping[str, Any],
        inventory: Inventory,
        *,
        by_order: bool,
    ):
        self._bundle, self._tensors, self.graph, self.by_order = bundle, set(bundle.keys()), graph, by_order
        self.objects, self._inventory = objects, inventory
        self.nodes: dict[str, int] = {}
        self.more_keys: set[str] = set()
        self.waiting: dict[str, list[int]] = {}
        self.paths: dict[int, str] = {0: ""}
        self.hints: list[str] = []
        self.later: list[Later] = []
        self._settled: set[int] = {node for name, node in self.children(0).items() if name == COUNTER}
        self._keys_of: dict[Ref, list[str]] = {}
        for key, item in inventory.items.items():
            if isinstance(item, Ref):
                self._keys_of.setdefault(item, []).append(key)
        self._refs: dict[int, list[Ref]] = {}
        self._walk()
        for kind, item, node, _ in self.later:
            kind.match(item, node, self)
        left = {owner: [node for node in nodes if node not in self._settled] for owner, nodes in self.waiting.items()}
        self.waiting = {owner: nodes for owner, nodes in left.items() if nodes}

    # -- for kinds of objects

    def children(self, node: int) -> dict[str, int]:
        """Return the numbers of the nodes that a node holds, by name."""
        return self.graph.nodes[node].children

    def has_value(self, node: int) -> bool:
        """Return whether a node is a variable with a value."""
        return value_key(self.graph.nodes[node]) is not None

    def full_name(self, node: int) -> str:
        """Return the name of a variable in TensorFlow, which need not be its own alone."""
        return next((each.full_name for each in self.graph.nodes[node].attributes if each.name == VALUE), "")

    def shape(self, node: int) -> tuple[int, ...]:
        """Return the shape of the value of a node."""
        return tuple(self._bundle.shape(value_key(self.graph.nodes[node])))

    def number(self, node: int) -> np.ndarray | None:
        """Return the value of a node if it is a single number, or else None."""
        key = value_key(self.graph.nodes[node])
        is_number = key is not None and self._bundle.shape(key) == () and not self._bundle.dtype(key).hasobject
        return self._bundle.read(key) if is_number else None

    def layers(self) -> list[Any]:
        """Return our layers and models."""
        return [item for item in self._inventory.objects.values() if (kind := kind_of(item)) is not None and kind.is_layer]

    def is_matched(self, variable: Any) -> bool:
        """Return whether a variable here was matched with a node."""
        return any(key in self.nodes for key in self._keys_of.get(ref_of(variable), ()))

    def variable_of(self, ref: Ref) -> Any:
        """Return the variable here that has a Ref which ``ref_at`` returned."""
        return self._inventory.variable_at(self._keys_of[ref][0])

    def ref_at(self, node: int) -> Ref | None:
        """Return the variable here that a node was matched with."""
        return next(iter(self._refs.get(node, ())), None)

    def settle(self, node: int) -> None:
        """Note that a value is not needed, because the program has the same."""
        self._settled.add(node)

    def is_settled(self, node: int) -> bool:
        """Return whether a value was matched, or is not needed."""
        return node in self._settled

    def lacks_none(self, variable: Any) -> None:
        """Note that a variable here needs no value."""
        self.more_keys.update(self._keys_of.get(ref_of(variable), ()))

    def within(self, *starts: int) -> set[int]:
        """Return all nodes that are reached from some nodes."""
        found, queue = set(starts), deque(starts)
        while queue:
            for child in self.graph.nodes[queue.popleft()].children.values():
                if child not in found:
                    found.add(child)
                    queue.append(child)
        return found

    def take(self, node: int, variable: Any, *, also: bool = False) -> None:
        """Match a node with a variable. `also` says that another variable may have the same value.

        Raises:
            CheckpointError: If one of them was matched with something else.
        """
        ref = ref_of(variable)
        keys = self._keys_of.get(ref)
        if keys is None or not self.has_value(node):
            return
        before, own = self.nodes.get(keys[0]), self._refs.setdefault(node, [])
        if before == node:
            return
        if before is not None:
            raise CheckpointError(
                f"{keys[0]!r} is one variable here, but two in the checkpoint, {self.paths[before]!r} and {self.paths[node]!r}."
            )
        if own and not also:
            raise CheckpointError(
                f"{self._keys_of[own[0]][0]!r} and {keys[0]!r} are two variables here, but one in the checkpoint, "
                f"{self.paths[node]!r}. Let the objects share it, as they did in TensorFlow."
            )
        own.append(ref)
        self.nodes[keys[0]] = node
        self.more_keys.update(keys[1:])
        self._settled.add(node)

    # -- the rest

    def unclaimed(self) -> list[int]:
        """Return the nodes with values that belong to nothing here, and for which no object waits."""
        known = self._settled.union(*self.waiting.values())
        return [
            number
            for number, node in enumerate(self.graph.nodes)
            if node.attributes and number not in known and not self._is_empty_table(node)
        ]

    def path_of(self, node: int) -> str:
        """Return the names that lead to a node; of a slot, the key of its value."""
        if node not in self.paths:
            self._find_paths()
        return self.paths.get(node) or self.graph.nodes[node].attributes[0].checkpoint_key.removesuffix("/.ATTRIBUTES/" + VALUE)

    def _is_empty_table(self, node: Node) -> bool:
        """Whether a node is a table without keys, as Keras's lookup layers have beside their vocabularies."""
        keys = [f"{each.checkpoint_key}-keys" for each in node.attributes if each.name == TABLE]
        return len(keys) == len(node.attributes) and all(key in self._tensors and self._bundle.shape(key) == (0,) for key in keys)

    def _walk(self) -> None:
        starts = {ROOT: 0} | self.children(0)  # a SavedModel does not hold itself by this name
        queue = deque(_Step(starts[name], item, name, None, name) for name, item in self.objects.items() if name in starts)
        seen: dict[tuple[int, int], Any] = {}
        while queue:
            step = queue.popleft()
            if (step.node, id(step.item)) not in seen:
                seen[step.node, id(step.item)] = step.item  # kept, so that nothing else gets its id
                self.paths.setdefault(step.node, step.path)
                queue.extend(self._inside(step))

    def _inside(self, step: _Step) -> Iterator[_Step]:
        """Match the node of a step, or yield the steps to what is in it."""
        kind = kind_of(step.item)
        if kind is not None and kind.needs_others:
            self.later.append(Later(kind, step.item, step.node, step.path))
        elif kind is not None:
            yield from self._inside_library(kind, step)
        elif is_variable(step.item):
            self.take(step.node, step.item)
        elif (found := _contents(step.item)) is not None:
            for name, child in self.children(step.node).items():
                if name in found:
                    key = None if step.key is None else f"{step.key}/{name}"
                    yield _Step(child, found[name], key, step.owner, f"{step.path}/{name}")
        elif step.key is not None and self.has_value(step.node):
            there = self._inventory.items.get(step.key)
            if there is not None and not isinstance(there, Stateful):
                self.nodes[step.key] = step.node
                self._settled.add(step.node)

    def _inside_library(self, kind: ObjectKind, step: _Step) -> Iterator[_Step]:
        owner = step.owner or step.key
        children = self.children(step.node)
        for name, child in children.items():
            part = kind.part(step.item, name)
            path = f"{step.path}/{name}"
            if part is not None:
                yield _Step(child, part, None, owner, path)
            elif kind.is_unbuilt(step.item) and owner is not None:
                self._wait(owner, child, path)
        self.hints += kind.left_out(step.item, step.path, children)

    def _wait(self, owner: str, node: int, path: str) -> None:
        """Note the values that an unbuilt object waits for."""
        self.paths.setdefault(node, path)
        values = [each for each in sorted(self.within(node)) if self.has_value(each)]
        self.waiting[owner] = list(dict.fromkeys([*self.waiting.get(owner, ()), *values]))

    def of_unbuilt(self) -> list[int]:
        """Return the nodes with values of the optimizers that are not built yet."""
        starts = [each for each in self.later if each.kind.is_unbuilt(each.item)]
        nodes = self.within(*(each.node for each in starts))
        nodes |= {slot.node for each in starts for slot in self.graph.nodes[each.node].slots}
        return [node for node in sorted(nodes) if self.has_value(node) and node not in self._settled]

    def _find_paths(self) -> None:
        """Find the shortest path to every node, through the lists of optimizers only if there is no other."""
        queue = deque(self.paths)
        aside: deque[tuple[int, str]] = deque()
        while queue or aside:
            if not queue:
                node, path = aside.popleft()
                if node in self.paths:
                    continue
                self.paths[node] = path
                queue.append(node)
            number = queue.popleft()
            for name, child in self.graph.nodes[number].children.items():
                path = f"{self.paths[number]}/{name}".lstrip("/")
                if child in self.paths:
                    continue
                if name in ("_variables", "_trainable_variables"):
                    aside.append((child, path))
                else:
                    self.paths[child] = path
                    queue.append(child)


def value_key(node: Node) -> str | None:
    """Return the key of the value of a variable; None for other nodes."""
    return next((each.checkpoint_key for each in node.attributes if each.name == VALUE), None)


def _contents(item: Any) -> Mapping[str, Any] | None:
    """What is in a container or an object that consists of others, by the names that TensorFlow gives it."""
    if (parts := parts_of(item)) is not None:
        return parts
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if isinstance(item, list | tuple):
        names = getattr(item, "_fields", range(len(item)))
        return {str(name): value for name, value in zip(names, item, strict=True)}
    return None
