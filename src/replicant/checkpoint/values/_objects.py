"""The contents of a checkpoint, with names: the key of a variable or of a container's leaf says where it is.

Keys are structural (``model/weights/0.kernel``), because Keras invents names that differ between two models of one program.
An ``ObjectKind`` takes objects of another library apart; the library's module registers it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax

from ...errors import ArgumentError
from ...replicas._values import is_distributed
from ...variables._known import is_variable, ref_of
from ...variables._libraries import connect_libraries
from ...variables._ref import Ref
from ._states import Stateful, is_stateful
from ._values import COPIES, check_leaf


class ObjectKind:
    """How to save and restore objects of certain types.

    types: the classes. needs_others: whether objects can be built only after other objects (optimizers after models).
    is_layer: whether their variables are those of the module that has them.
    """

    types: tuple[type, ...]
    needs_others = False
    is_layer = False
    never_saved: tuple[str, ...] = ()  # what the names of variables begin with that no checkpoint of TensorFlow holds

    def variables(self, item: Any) -> list[tuple[str, Any]]:
        """Return the object's variables with names that are unique in the object, and equal for equal objects."""
        raise NotImplementedError

    def describe(self, item: Any, inventory: "Inventory") -> dict[str, Any]:
        """Return what ``build`` needs to know, as JSON."""
        del item, inventory
        return {}

    def build(self, item: Any, key: str, description: dict[str, Any], inventory: "Inventory") -> bool:
        """Make the variables that the saved object had and this one still lacks.

        Returns:
            False if they can only be made by using the object.

        Raises:
            CheckpointError: If they cannot be made.
        """
        del item, key, description, inventory
        return True

    def may_grow(self, item: Any) -> bool:
        """Return whether using the object may make more variables, which may change the numbers of the present ones."""
        del item
        return False

    def part(self, item: Any, name: str) -> Any:
        """Return what TensorFlow's checkpoints call `name` in the object, or None."""
        return vars(item).get(name)

    def left_out(self, item: Any, path: str, names: Collection[str]) -> list[str]:
        """Return sentences that say what TensorFlow has left out of the object at `path`, of which a checkpoint has these parts."""
        del item, path, names
        return []

    def is_unbuilt(self, item: Any) -> bool:
        """Return whether the object itself, whatever is in it, will make its variables later."""
        del item
        return False

    def match(self, item: Any, node: int, found: Any) -> None:
        """Match what an optimizer keeps for the variables of others with a node of TensorFlow's graph (``tensorflow/_match.py``).

        Args:
            item: The object. Only those of kinds that need others are matched here.
            node: The number of its node.
            found: The `Match`, which has matched the other objects.
        """
        del item, node, found

    def build_as(self, item: Any, node: int, found: Any) -> bool:
        """Build an optimizer for the variables that it had in a checkpoint of TensorFlow. Return whether it was built now."""
        del item, node, found
        return False

    def restored(self, item: Any) -> None:
        """Bring what the object computes from its variables up to date, after they have got their values."""
        del item

    def when_built(self, item: Any, resume: Callable[[], None]) -> None:
        """Call `resume` once, when an object that ``build`` could not build has got its variables, before it computes."""
        raise NotImplementedError


_kinds: list[ObjectKind] = []


def register_kind(kind: ObjectKind) -> None:
    """Make objects of another library known to checkpoints."""
    _kinds.append(kind)


# For each type of objects that consist of others, such as modules, the function that returns these by name.
_with_parts: dict[type, Callable[[Any], Mapping[str, Any]]] = {}


def register_parts(kind: type, find: Callable[[Any], Mapping[str, Any]]) -> None:
    """Make a type of objects known that are saved as the variables and objects in them. `find` returns these by name.

    They may be in lists, tuples, dicts and other such objects. What has no state of its own, such as numbers, is left out.
    """
    _with_parts[kind] = find


def parts_of(item: Any) -> Mapping[str, Any] | None:
    """Return what is in an object that consists of others, by name; None for other objects."""
    return next(find(item) for kind, find in _with_parts.items() if isinstance(item, kind)) if has_parts(item) else None


def has_parts(item: Any) -> bool:
    """Return whether `item` is saved as what is in it. With KERAS_NNX_ENABLED=1, a Keras model is a module, but of its own kind."""
    return isinstance(item, tuple(_with_parts)) and kind_of(item) is None


def kind_of(item: Any) -> ObjectKind | None:
    """Return how to save `item`, or None if it is not of a registered kind."""
    return next((kind for kind in _kinds if isinstance(item, kind.types)), None)


def numbered(group: str, variables: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return variables with names made of their position and the last part of their own name."""
    return [(f"{group}{i}.{variable.name.rsplit('/', 1)[-1]}", variable) for i, variable in enumerate(variables)]


class Inventory:
    """Everything that `objects` contain at this moment.

    objects: key -> object of a registered kind. items: key -> Ref of a variable, object with a state, or leaf of a container.
    """

    def __init__(self, objects: Mapping[str, Any], waiting: Sequence[str] = ()):
        connect_libraries()
        self._waiting = waiting
        leaves, self._tree = jax.tree_util.tree_flatten_with_path(dict(objects), is_leaf=_is_leaf)
        self._leaves = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]
        self.objects: dict[str, Any] = {}
        self.items: dict[str, Any] = {}
        self._variables: dict[str, Any] = {}
        self._keys: dict[Ref, str] = {}  # an optimizer has other objects for the same variables
        for key, leaf in self._leaves:
            self._add(key, leaf)

    def key_of(self, variable: Any) -> str | None:
        """Return the (first) key of a variable, or None if it is not part of the checkpoint."""
        return self._keys.get(ref_of(variable))

    def will_have(self, key: str) -> bool:
        """Return whether a variable of that key belongs to an object whose variables are not made yet."""
        return any(key.startswith(f"{other}/") for other in self._waiting)

    def variable_at(self, key: str) -> Any:
        """Return the variable of that key, or None."""
        return self._variables.get(key)

    def with_leaves(self, replace: Callable[[str, Any], Any]) -> dict[str, Any]:
        """Return new containers in which ``replace(key, leaf)`` replaces every leaf. Objects and variables stay."""
        new = [leaf if is_saved(leaf) else replace(key, leaf) for key, leaf in self._leaves]
        return jax.tree_util.tree_unflatten(self._tree, new)

    def _add(self, key: str, leaf: Any) -> None:
        if has_parts(leaf):
            self._add_inside(key, leaf, {})
            return
        kind = kind_of(leaf)
        if kind is not None:
            self.objects[key] = leaf
            for name, variable in kind.variables(leaf):
                self._add_variable(f"{key}/{name}", variable)
        elif is_variable(leaf):
            self._add_variable(key, leaf)
        elif is_stateful(leaf):
            self._add_item(key, Stateful(key, leaf))
        else:
            check_leaf(key, leaf)
            self._add_item(key, leaf)

    def _add_inside(self, key: str, value: Any, seen: dict[int, Any]) -> None:
        """Add what is in an object with parts, each thing once."""
        if id(value) in seen:
            return
        seen[id(value)] = value  # kept, because a mapping may make its values anew, and another one would get the id
        parts = parts_of(value)
        if parts is None and isinstance(value, Mapping):
            parts = value
        elif parts is None and isinstance(value, list | tuple):
            parts = {str(i): item for i, item in enumerate(value)}
        if parts is not None:
            for name, part in parts.items():
                self._add_inside(f"{key}/{name}", part, seen)
        elif is_saved(value):
            self._add(key, value)

    def _add_variable(self, key: str, variable: Any) -> None:
        self._add_item(key, ref_of(variable))
        self._variables[key] = variable
        self._keys.setdefault(ref_of(variable), key)

    def _add_item(self, key: str, item: Any) -> None:
        if key.endswith(COPIES):
            raise ArgumentError(f"Checkpoint: {key!r} ends in {COPIES!r}, which Checkpoint uses internally. Rename the dict key.")
        if key in self.items:
            raise ArgumentError(f"Checkpoint: two values have the key {key!r}. Rename the object or dict key of one of them.")
        self.items[key] = item


def is_saved(leaf: Any) -> bool:
    """Return whether `leaf` is a variable or an object that checkpoints save, and not just a value."""
    return is_variable(leaf) or isinstance(leaf, tuple(_with_parts)) or kind_of(leaf) is not None or is_stateful(leaf)


def _is_leaf(node: Any) -> bool:
    return is_saved(node) or is_distributed(node)
