"""Matches optimizers with those in TensorFlow's checkpoints: legacy ones, those of Keras 2.11 and later, and those of Keras 3."""

from typing import Any

import numpy as np

from ...variables._known import is_variable
from .. import _internals
from ..optimizers._apply import build_now
from ._slots import Slots

_COUNTS = ("_iterations", "iter")
_LEGACY_NAMES = {"iter": "_iterations", "learning_rate": "_learning_rate", "momentum_cache": "_u_product"}
_OF_SCALE = {"current_loss_scale": "dynamic_scale", "good_steps": "step_counter"}


def match(optimizer: Any, node: int, found: Any) -> None:
    """Match an optimizer with the node of one.

    A LossScaleOptimizer of Keras 3 holds the one inside, as here; one of Keras 2 is a single object with what both have. Where
    only the checkpoint has one, what is inside it belongs to the optimizer here.
    """
    children = found.children(node)
    is_scaled = isinstance(optimizer, _internals.LossScaleOptimizer)
    if "inner_optimizer" in children:
        if is_scaled:
            _match_scalars(optimizer, node, found)
            match(optimizer.inner_optimizer, children["inner_optimizer"], found)
        else:
            match(optimizer, children["inner_optimizer"], found)
        return
    if is_scaled:
        _match_scale(optimizer, node, found)
        match(optimizer.inner_optimizer, node, found)
        return
    _match_scalars(optimizer, node, found)
    if optimizer.built:
        Slots(optimizer, node, found).match()


def build(optimizer: Any, node: int, found: Any) -> bool:
    """Build an optimizer for the variables that the one of the node had, if it keeps something for them. Return whether it did."""
    if optimizer.built:
        return False
    children = found.children(node)
    inner = children.get("inner_optimizer", node)
    is_scaled = isinstance(optimizer, _internals.LossScaleOptimizer)
    own = optimizer.inner_optimizer if is_scaled else optimizer
    slots = Slots(own, inner, found)
    variables = slots.trained()
    if variables is None and is_scaled and ("loss_scale" in children or "dynamic_scale" in children):
        variables = slots.candidates()
    if not variables:
        return False
    build_now(optimizer, variables)
    return True


def _match_scale(optimizer: Any, node: int, found: Any) -> None:
    """Match what a LossScaleOptimizer has beside the one inside with an optimizer of Keras 2, which has but one of each."""
    children = found.children(node)
    scale = found.children(children["loss_scale"]) if "loss_scale" in children else {}
    for theirs, ours in _OF_SCALE.items():
        if theirs in scale and (variable := vars(optimizer).get(ours)) is not None:
            found.take(scale[theirs], variable)
    for name in _COUNTS:
        if name in children:
            found.take(children[name], optimizer._iterations)
            found.take(children[name], optimizer.inner_optimizer._iterations, also=True)
    found.lacks_none(optimizer._learning_rate)  # Keras never uses it: the one inside has the rate


def _match_scalars(optimizer: Any, node: int, found: Any) -> None:
    for name, child in found.children(node).items():
        if not found.has_value(child) or found.is_settled(child):
            continue
        part = vars(optimizer).get(_LEGACY_NAMES.get(name, name))
        if is_variable(part):
            found.take(child, part)
        elif name == "_current_learning_rate" and not is_variable(optimizer._learning_rate):
            found.settle(child)  # what the schedule gave; it gives the same again
        elif _is_the_same(optimizer, name, found.number(child)):
            found.settle(child)


def _is_the_same(optimizer: Any, name: str, value: np.ndarray | None) -> bool:
    """Whether a legacy optimizer had the same number as this one, which has it from the program. Without `decay` it was 0."""
    mine = 0.0 if name == "decay" else vars(optimizer).get(name)
    return type(mine) in (int, float) and value is not None and bool(np.asarray(mine).astype(value.dtype) == value)
