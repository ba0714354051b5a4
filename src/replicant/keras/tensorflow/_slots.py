"""What optimizers keep for each variable that they train, such as Adam's moments: whose it is in TensorFlow's checkpoints.

Keras 3 has lists in the order of its list of variables, which are nodes of the graph. Keras 2.11 and later has lists, too, but only
names tell whose each slot is: ``Adam/m/dense/kernel``. Before, the graph itself said it. Slots of variables that TensorFlow's
parameter servers kept in slices have no names; such a slot belongs to the variable of its shape, if there is only one.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import keras

from ...errors import CheckpointError
from ...variables._known import ref_of

_VARIABLES, _TRAINED = "_variables", "_trainable_variables"
# The lists of Keras 3 by the names of slots before Keras 2.11, and where an optimizer differs.
_LISTS = {
    "m": "_momentums",
    "v": "_velocities",
    "vhat": "_velocity_hats",
    "rms": "_velocities",
    "mg": "_average_gradients",
    "accumulator": "_accumulators",
    "linear": "_linears",
    "accum_grad": "_accumulated_grads",
    "accum_var": "_accumulated_delta_vars",
    "momentum": "_momentums",
    "average": "_model_variables_moving_average",
}
_LISTS_OF: dict[type, dict[str, str]] = {keras.optimizers.Adamax: {"m": "_m", "v": "_u"}}


class Slots:
    """The slots of an optimizer here and of one in a checkpoint.

    Args:
        optimizer: The optimizer, which need not be built.
        node: The number of the node of the other one.
        found: The `Match`, which has matched the models.
    """

    def __init__(self, optimizer: Any, node: int, found: Any):
        self._optimizer, self._node, self._found = optimizer, node, found

    def match(self) -> None:
        """Match the slots of variables that were matched."""
        if self._found.by_order:
            self._match_variables_in_order()
        position = {ref_of(variable): i for i, variable in enumerate(self._optimizer._trainable_variables)}
        for name, number, slot in self._slots():
            own = self._list(name)
            ref = self._ref_of_slot(number, slot)
            index = position.get(ref) if ref is not None else None
            if index is None and self._found.by_order and number is not None:
                index = self._in_order(name, number, slot)
            if own is not None and index is not None and index < len(own) and own[index] is not None:
                self._found.take(slot, own[index])
            elif own is None and name == "momentums" and vars(self._optimizer).get("momentum") == 0:
                self._found.settle(slot)  # SGD of Keras 2 keeps them without momentum, too, which takes 0 times their values
        self._match_the_rest()

    def trained(self) -> list[Any] | None:
        """Return the variables here that the other optimizer has slots for, in the order of the models; None if it has none.

        If some of them are unknown, these are all variables that the models here train.
        """
        nodes = self._trained_nodes()
        if not nodes:
            return None
        refs = [self._found.ref_at(node) if node is not None else None for node in nodes]
        known = {ref: self._found.variable_of(ref) for ref in refs if ref is not None}
        trainable = self.candidates()
        if len(known) < len(refs):
            return trainable
        first = [variable for variable in trainable if ref_of(variable) in known]
        return first if len(first) == len(known) else list(known.values())

    def candidates(self) -> list[Any]:
        """Return the variables that the models here train."""
        found = {ref_of(variable): variable for layer in self._layers() for variable in layer.trainable_variables}
        return list(found.values())

    # -- the slots of the other optimizer

    def _slots(self) -> Iterator[tuple[str, int | None, int]]:
        """Yield the name of each slot, its number in the list, and its node."""
        for slot in self._found.graph.nodes[self._node].slots:
            yield slot.name, None, slot.node
        for name, numbers in self._lists.items():
            yield from ((name, number, node) for number, node in numbers.items())

    @cached_property
    def _lists(self) -> dict[str, dict[int, int]]:
        """The nodes of slots, by the name of their list and their number in it."""
        lists = {}
        for name, child in self._found.children(self._node).items():
            items = self._found.children(child)
            if name in (_VARIABLES, _TRAINED) or not items or not all(map(_is_number, items)):
                continue
            if all(map(self._found.has_value, items.values())):
                lists[name] = {int(number): node for number, node in items.items()}
        return lists

    def _trained_nodes(self) -> list[int | None]:
        """The variables of the other optimizer, in its order; None for those that nothing tells."""
        if self._file_variables:
            return [self._file_variables[number] for number in sorted(self._file_variables)]
        if slots := self._found.graph.nodes[self._node].slots:
            return list(dict.fromkeys(slot.variable for slot in slots))
        longest = max(self._lists.values(), key=len, default={})
        return [self._owner(node) for _, node in sorted(longest.items())]

    @cached_property
    def _file_variables(self) -> dict[int, int]:
        """Keras 3: the nodes of the variables that it trains, by number."""
        child = self._found.children(self._node).get(_TRAINED)
        items = {} if child is None else self._found.children(child)
        return {int(number): node for number, node in items.items() if _is_number(number)}

    @cached_property
    def _owners(self) -> dict[int, int]:
        """Before Keras 2.11: the nodes of variables by those of their slots."""
        return {slot.node: slot.variable for slot in self._found.graph.nodes[self._node].slots}

    def _ref_of_slot(self, number: int | None, slot: int) -> Any:
        node = self._owners.get(slot)
        if node is None and number is not None:
            node = self._file_variables.get(number) if self._file_variables else self._owner(slot)
        return None if node is None else self._found.ref_at(node)

    def _match_the_rest(self) -> None:
        """Match what Keras 3 has in no list, by the place in the list of all variables of the optimizer.

        So it is with lists in which some are None, as Adafactor's. The place says which it is if both optimizers have as many
        variables, and train the same in the same order.
        """
        trained = [self._found.ref_at(node) for _, node in sorted(self._file_variables.items())]
        if not trained or trained != [ref_of(variable) for variable in self._optimizer._trainable_variables]:
            return
        items = self._found.children(self._found.children(self._node).get(_VARIABLES, self._node))
        own = self._optimizer._variables
        if len(items) == len(own):
            for number, variable in enumerate(own):
                node = items.get(str(number))
                if node is not None and not self._found.is_settled(node):
                    self._found.take(node, variable)

    # -- whose a slot is, by the names of Keras 2

    @cached_property
    def _others(self) -> list[int]:
        """The variables that are not part of the optimizer."""
        inside = self._found.within(self._node)
        return [node for node in range(len(self._found.graph.nodes)) if node not in inside and self._found.has_value(node)]

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        names: dict[str, list[int]] = {}
        for node in self._others:
            names.setdefault(self._found.full_name(node), []).append(node)
        return names

    def _owner(self, slot: int) -> int | None:
        """The variable whose name the slot has in its own, after the names of optimizer and slot; None if that is not one."""
        words, shape = self._found.full_name(slot).split("/"), self._found.shape(slot)
        if len(words) == 1:
            found = self._others
        else:
            found = [node for skip in (1, 2) for node in self._by_name.get("/".join(words[skip:]), ())]
        if len(found) != 1:
            found = [node for node in found if self._found.shape(node) == shape]
        return found[0] if len(found) == 1 else None

    # -- ours

    def _list(self, name: str) -> Any:
        """The list of the optimizer here that has the name, or that Keras 2 gave that of a slot."""
        lists = vars(self._optimizer)
        renamed = next((each[name] for kind, each in _LISTS_OF.items() if isinstance(self._optimizer, kind) and name in each), None)
        renamed = renamed or _LISTS.get(name, name)
        bare = renamed.lstrip("_")
        return next(
            (lists[each] for each in (renamed, f"_{bare}", bare) if isinstance(lists.get(each), list) and lists[each]), None
        )

    def _layers(self) -> list[Any]:
        """The models here that have a variable which was matched, or all if none has."""
        models = [each for each in self._found.layers() if hasattr(each, "trainable_variables")]
        return [each for each in models if any(self._found.is_matched(variable) for variable in each.variables)] or models

    # -- in order, on request

    def _match_variables_in_order(self) -> None:
        """Match the variables of Keras 3's list by their order with those of the optimizer here.

        Raises:
            CheckpointError: If there are more or fewer here, or those that were matched have another order.
        """
        own = self._optimizer._trainable_variables
        nodes = self._file_variables
        if not nodes or all(self._found.is_settled(node) for node in nodes.values()):
            return
        if sorted(nodes) != list(range(len(own))):
            raise CheckpointError(
                f"by_order=True: the optimizer in the checkpoint trains {len(nodes)} variables, but {self._optimizer.name!r} is "
                f"built for {len(own)}. The order says whose they are only if both train the same."
            )
        for number, node in sorted(nodes.items()):
            variable = own[number]
            known = self._found.ref_at(node)
            if known is not None and known is not ref_of(variable):
                raise CheckpointError(
                    f"by_order=True: variable {number} of the optimizer in the checkpoint is {known.name!r}, but that of "
                    f"{self._optimizer.name!r} is {variable.path!r}. Build the optimizer in the order of the checkpoint."
                )
            self._found.take(node, variable)

    def _in_order(self, name: str, number: int, slot: int) -> int | None:
        """The position of a slot's variable in the order, if there are as many of both."""
        count = len(self._optimizer._trainable_variables)
        return number if len(self._lists[name]) == count and number < count else None


def _is_number(name: str) -> bool:
    return name.isdecimal() and name.isascii() and len(name) < 10
