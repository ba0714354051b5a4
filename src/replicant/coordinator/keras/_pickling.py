"""How Keras objects travel to workers and servers: with their attributes, and references to the servers' variables.

Keras pickles a model by saving it, which would lose the identity of its variables. Here an object's attributes travel, and the
receiver builds nothing.
"""

from typing import Any

from ...keras._internals import KerasSaveable, TrackedDict, TrackedList, TrackedSet
from ...keras.loops._fit_callbacks import RUN
from ..workers import _pickling

# What each process makes itself, and the fit with its callbacks, which run in this one.
_STAYS = ("train_function", "test_function", "predict_function", "_jax_state", "_replicant_ps_step", "history", RUN)
_PLAIN: dict[type, Any] = {TrackedList: list, TrackedDict: dict, TrackedSet: set}


def register() -> None:
    """Add the rules for Keras objects."""
    for kind in _PLAIN:
        _pickling.rules[kind] = _reduce_tracked
    _pickling.rules[KerasSaveable] = _reduce_object


def _reduce_object(item: Any) -> Any:
    state = {name: None if name in _STAYS else value for name, value in item.__dict__.items()}
    return _empty, (type(item),), state, None, None, _fill


def _empty(kind: type) -> Any:
    return object.__new__(kind)


def _fill(item: Any, state: dict[str, Any]) -> None:
    item.__dict__.update(state)  # not setattr: Keras would track everything again
    known = item.__dict__.get("_trainable_variables")
    if "_trainable_variables_indices" in item.__dict__ and known:  # an optimizer's; its keys are identities
        item.__dict__["_trainable_variables_indices"] = {id(variable): i for i, variable in enumerate(known)}


def _reduce_tracked(items: Any) -> Any:
    plain = _PLAIN[type(items)]
    return _empty_tracked, (type(items),), (plain(items), dict(items.__dict__)), None, None, _fill_tracked


def _empty_tracked(kind: type) -> Any:
    return _PLAIN[kind].__new__(kind)


def _fill_tracked(items: Any, state: tuple[Any, dict[str, Any]]) -> None:
    contents, attributes = state
    items.__dict__.update(attributes)
    plain = _PLAIN[type(items)]
    (plain.extend if plain is list else plain.update)(items, contents)
