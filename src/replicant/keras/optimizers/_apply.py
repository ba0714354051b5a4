"""Applies optimizers. In a replica, the gradients are first summed over the replicas, once.

So clipping, accumulation, loss scaling and moving averages act on the gradient of the global batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import keras

from ...reductions._search import GRADIENTS
from ...replicas._collectives import ReduceOp
from ...replicas._context import (
    ReplicaContext,
    active_replica_context,
)
from ...replicas._own_mesh import at_once
from ...variables._recorder import ReplicaRecorder, beside_the_trace, current_recorder
from .. import _internals
from ..state._recording_scope import RecordingScope
from ..state._refs import ref_of_keras
from ..state._tracked import for_optimizer
from ..state._variables import applying
from . import _sliced


def apply(original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    """Apply an optimizer. In a replica, sum the gradients over all replicas first."""
    context = active_replica_context()
    if context is None or current_recorder() is None:
        return _apply_here(original, optimizer, grads, trainable_variables)
    grads = list(grads)
    outermost, cut_already = applying.depth == 0, False
    if outermost:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            build_now(optimizer, trainable_variables)
        for slot in optimizer.variables:
            ref_of_keras(slot).slot = True
        if context.num_replicas_in_sync > 1:
            axes = _sliced.axes_of(optimizer, trainable_variables, context.strategy.placement)
            cut_already = axes is not None
            grads = _summed(context, grads) if axes is None else _summed_in_slices(context, grads, axes)
    applying.depth += 1
    try:
        if not outermost:
            return _update(original, optimizer, grads, trainable_variables)

        def update(parts: list[Any], variables: Any) -> Any:
            return _update(original, optimizer, parts, variables)

        placement = context.strategy.placement
        if not placement.slices_state:
            return update(grads, trainable_variables)
        return _sliced.apply(update, optimizer, grads, trainable_variables, placement, cut_already=cut_already)
    finally:
        applying.depth -= 1


def _update(original: Any, optimizer: Any, grads: list[Any], variables: Any) -> Any:
    """Update the variables inside a replica, given the gradients of the global batch or slices of them."""
    if not isinstance(optimizer, _internals.LossScaleOptimizer):
        return original(optimizer, grads, variables)
    if _sliced.is_working():
        return _sliced.scaled(optimizer, grads, variables)
    return _apply_functionally(optimizer, grads, variables)


def _apply_here(original: Any, optimizer: Any, grads: Any, trainable_variables: Any) -> Any:
    """Apply an optimizer outside of `run`: in a compiled function, eagerly, or in functional code of Keras."""
    scope = _internals.get_stateless_scope() if _internals.in_stateless_scope() else None
    functional = scope is not None and not isinstance(scope, RecordingScope)
    if not isinstance(optimizer, _internals.LossScaleOptimizer) or functional:
        return original(optimizer, grads, trainable_variables)
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)
        build_now(optimizer, trainable_variables)
    return _apply_functionally(optimizer, list(grads), trainable_variables)


def _summed(context: ReplicaContext, grads: list[Any]) -> list[Any]:
    """Sum the gradients over all replicas. They travel in the strategy's `gradient_dtype` if it has one."""
    present = [i for i, g in enumerate(grads) if g is not None]
    sent = [jnp.asarray(grads[i]) for i in present]
    narrow = context.strategy.gradient_dtype
    if narrow is not None:
        sent = [g.astype(narrow) if jnp.issubdtype(g.dtype, jnp.floating) else g for g in sent]
    result = list(grads)
    with jax.named_scope(GRADIENTS):
        totals = context.all_reduce(ReduceOp.SUM, sent)
    for i, total in zip(present, totals, strict=True):
        result[i] = total.astype(grads[i].dtype)
    return result


def _summed_in_slices(context: ReplicaContext, grads: list[Any], axes: list[int | None]) -> list[Any]:
    """Sum the gradients over all replicas, and keep this replica's slices of those that have an axis to cut along."""
    recorder = current_recorder()
    assert isinstance(recorder, ReplicaRecorder)
    cut = {i: axis for i, (g, axis) in enumerate(zip(grads, axes, strict=True)) if g is not None and axis is not None}
    result = _summed(context, [None if i in cut else g for i, g in enumerate(grads)])
    with jax.named_scope(GRADIENTS):
        parts = recorder.sums_of_slices([jnp.asarray(grads[i]) for i in cut], list(cut.values()))
    for i, part in zip(cut, parts, strict=True):
        result[i] = part
    return result


def _apply_functionally(optimizer: Any, grads: list[Any], variables: list[Any] | None) -> None:
    """Pass the optimizer's state in and out: loss scaling branches on the gradients, and a traced branch must not assign."""
    known = optimizer._trainable_variables
    by_id = dict(zip(map(id, known if variables is None else variables), grads, strict=True))
    new_values, new_slots = optimizer.stateless_apply(
        [v.value for v in optimizer.variables], [by_id.get(id(v)) for v in known], [v.value for v in known]
    )
    for variable, value in zip([*known, *optimizer.variables], [*new_values, *new_slots], strict=True):
        variable.assign(value)


def build_now(optimizer: Any, variables: list[Any]) -> None:
    """Make the optimizer's variables outside the trace: some have computed initial values."""
    if optimizer.built:
        return
    variables = for_optimizer(variables)  # before the name scope, which is not part of their names
    outside = _internals.outside_stateless_scope()
    with beside_the_trace(), outside, at_once(), keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
        optimizer.built = True
