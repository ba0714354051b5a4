"""Restores the values of a TensorFlow checkpoint: what it matches is read, checked and assigned as in a checkpoint of our own."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ....errors import CheckpointError
from ...values._objects import Inventory, kind_of
from ...values._restore import Restore
from ...values._restore_status import differences
from ._match import COUNTER, Match, value_key
from ._opened import Opened
from ._tensor import Tensor


class GraphRestore(Restore):
    """A restore from a checkpoint of TensorFlow, in which the keys of values are found by matching graphs of objects.

    Args:
        opened: The checkpoint.
        objects: The objects by name.
        by_order: Whether the variables of an optimizer may be matched by their order (``Match``).
    """

    def __init__(self, opened: Opened, objects: dict[str, Any], *, by_order: bool):
        super().__init__(opened.bundle.path, objects, {}, {}, f"{opened.bundle.path} of TensorFlow")
        self._bundle, self._graph, self._by_order = opened.bundle, opened.graph, by_order
        self._known: set[str] = set()  # keys whose values were found, or are not needed
        self._unclaimed: list[str] = []
        self._waiting_nodes: list[int] = []
        self._ahead: dict[int, np.ndarray] = {}  # what objects wait for, read with everything else
        self._groups_never_saved: tuple[str, ...] = ()

    @property
    def meta(self) -> dict[str, Any]:
        """What the checkpoint says beside the values: its number, if it has one."""
        node = self._graph.nodes[0].children.get(COUNTER)
        key = None if node is None else value_key(self._graph.nodes[node])
        return {} if key is None else {"save_counter": int(self._bundle.read(key))}

    def has(self, name: str) -> bool:
        return super().has(name) or name in self._graph.nodes[0].children

    def waiting(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.deferred:
            raise CheckpointError(
                f"Values of {self.path} still wait for objects that are not built: {', '.join(self.deferred[:3])}"
                f"{', ...' if len(self.deferred) > 3 else ''}. A checkpoint that is saved now would not hold them. Call the model "
                "on one batch before you save."
            )
        return {}, {}

    def _build(self) -> list[str]:
        found = self._matched(Inventory(self._objects))
        for later in found.later:
            if not found.waiting and later.kind.build_as(later.item, later.node, found):
                found = self._matched(Inventory(self._objects))
        unbuilt = [key for key in found.waiting if key not in self._used]
        for key in unbuilt:
            item = Inventory(self._objects).objects[key]
            kind = kind_of(item)
            if kind is not None and key not in self._waiting:
                kind.when_built(item, partial(self._resume, key))
                self._waiting.add(key)
        return unbuilt

    def _matched(self, inventory: Inventory) -> Match:
        return Match(self._bundle, self._graph, self._objects, inventory, by_order=self._by_order)

    def _claim(self, inventory: Inventory, growing: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        found = self._matched(inventory)
        self._groups_never_saved = tuple(
            f"{name}/{group}" for name, item in inventory.objects.items() if (kind := kind_of(item)) for group in kind.never_saved
        )
        new = {key: node for key, node in found.nodes.items() if key not in self._known}
        grows = [key for key in new if any(key.startswith(f"{each}/") for each in growing)]
        waiting = [node for nodes in found.waiting.values() for node in nodes] + [new.pop(key) for key in grows]
        if waiting:
            waiting += found.of_unbuilt()
        self._waiting_nodes = list(dict.fromkeys(waiting))
        late = set(waiting)
        unclaimed = [node for node in found.unclaimed() if node not in late]
        names = tuple(map(found.path_of, unclaimed))
        self.hints = tuple(found.hints)
        if not self._began and inventory.items and not new and not waiting:
            self._say_that_nothing_fits(names)
        for key, node in new.items():
            self._values[key] = self._value(inventory.items[key], node)
        self._known |= {*new, *found.more_keys}
        return tuple(map(found.path_of, self._waiting_nodes)), names

    def _value(self, item: Any, node: int) -> Any:
        key = value_key(self._graph.nodes[node])
        assert key is not None, "only nodes with values are matched"
        tensor = Tensor(self._bundle, key, item, self._ahead.pop(node, None))
        return tensor.read() if self._began else tensor

    def _lacking(self, keys: Iterable[str]) -> tuple[str, ...]:
        lacking = [key for key in keys if key not in self._known]
        self.never_saved = tuple(key for key in lacking if key.startswith(self._groups_never_saved))
        return tuple(key for key in lacking if key not in self.never_saved)

    def _read(self, items: Mapping[str, Any]) -> None:
        super()._read(items)
        for node in self._waiting_nodes:
            key = value_key(self._graph.nodes[node])
            if key is not None:
                self._ahead[node] = self._bundle.read(key)

    def _explain(self, error: CheckpointError) -> None:
        """Add nothing: an optimizer that cannot be built is not built here, and what it lacks is told with everything else."""

    def _say_that_nothing_fits(self, names: tuple[str, ...]) -> None:
        ours, theirs = (", ".join(map(repr, list(each)[:_MOST])) for each in (self._objects, self._graph.nodes[0].children))
        raise CheckpointError(
            f"The checkpoint {self.path} of TensorFlow has nothing for these objects, which are called {ours}; those in it are "
            f"called {theirs}. Call them here as they were called there, as in replicant.Checkpoint(model=model) for "
            "tf.train.Checkpoint(model=model). If the file is one of weights alone, its root is the model: "
            f"replicant.Checkpoint(root=model).{differences((), names)}"
        )


_MOST = 8  # names in a message
