"""Optimizer state in slices: each replica keeps and updates one part of it (ZeRO stages 1 and 3).

A placement with ``slices_slots`` cuts the optimizer's variables over the replicas. For an update, an optimizer that works element
by element gets its replica's slices of weights, gradients and state, and then the weights are put together again. It may clip by
norms, which are sums over the slices and one small all-reduce, accumulate gradients, and keep moving averages. Loss scaling works
on slices, too, where the optimizer that it wraps does. An optimizer that looks at whole tensors (factors, trust ratios,
constraints) gets the whole state, and keeps its slice of what it assigns.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import keras

from ...replicas._collectives import ReduceOp
from ...replicas._context import active_replica_context
from ...replicas._placement import Placement
from ...variables._recorder import ReplicaRecorder, current_recorder
from ...variables._ref import Ref
from .. import _internals
from ..state._refs import ref_of_keras

# Their update of an element depends only on that element, its gradient and its state.
_ELEMENT_BY_ELEMENT = tuple(
    getattr(keras.optimizers, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD")
)


def axes_of(optimizer: Any, variables: Sequence[Any] | None, placement: Placement) -> list[int | None] | None:
    """Return the axis along which each variable's gradient is cut once it is summed; None if the optimizer needs them whole."""
    known = optimizer._trainable_variables
    recorder = current_recorder()
    if placement.slices_from is None or not isinstance(recorder, ReplicaRecorder) or not _has_slices(recorder, optimizer):
        return None
    if not works_on_slices(optimizer):
        return None
    return [placement.slice_axis(tuple(v.shape), v.dtype, slot=True) for v in (known if variables is None else variables)]


def _has_slices(recorder: ReplicaRecorder, optimizer: Any) -> bool:
    """Whether this replica holds slices of variables that it or its optimizer uses."""
    own = [ref_of_keras(v) for v in (*optimizer._trainable_variables, *optimizer.variables)]
    return any(recorder.slice_axis(ref) is not None for ref in (*own, *recorder.values))


def apply(
    update: Callable[[list[Any], Sequence[Any]], Any],
    optimizer: Any,
    grads: list[Any],
    variables: Sequence[Any] | None,
    placement: Placement,
    *,
    cut_already: bool = False,
) -> Any:
    """Call ``update(gradients, variables)`` inside a replica, on slices if the optimizer works on them.

    Args:
        update: Updates the variables, given the gradients of the global batch.
        optimizer: The optimizer.
        grads: The gradients of the global batch.
        variables: Their variables; None for all of the optimizer's.
        placement: The placement of the strategy.
        cut_already: Whether the gradients are slices where `axes_of` has named an axis.
    """
    known = optimizer._trainable_variables
    given = known if variables is None else variables
    recorder = current_recorder()
    if not isinstance(recorder, ReplicaRecorder) or not _has_slices(recorder, optimizer) or not works_on_slices(optimizer):
        return update(grads, given)

    def part_of(gradient: Any, axis: int | None) -> Any:
        return gradient if gradient is None or axis is None or cut_already else recorder.slice_of(gradient, axis)

    axes = [placement.slice_axis(tuple(v.shape), v.dtype, slot=True) for v in given]
    refs = [(v, placement.slice_axis(tuple(v.shape), v.dtype, slot=True)) for v in known]
    cut: dict[Ref, int] = {ref_of_keras(v): axis for v, axis in refs if axis is not None}
    parts = [part_of(g, axis) for g, axis in zip(grads, axes, strict=True)]
    present = [axis is not None for g, axis in zip(grads, axes, strict=True) if g is not None]
    with recorder.working_on_slices(cut), _cut_gradients(present):
        return update(parts, given)


def scaled(optimizer: Any, grads: list[Any], variables: Sequence[Any]) -> None:
    """Do what a LossScaleOptimizer does, on slices: skip the update and halve the scale if any replica has found no number.

    Semantics: ``keras.optimizers.LossScaleOptimizer``. Nothing branches, because replicas must not exchange in a branch.

    Args:
        optimizer: The LossScaleOptimizer.
        grads: The gradients, with slices where `apply` has cut them.
        variables: Their variables.
    """
    finite = _sum([jnp.sum(jnp.stack([jnp.sum(~jnp.isfinite(g)) for g in grads if g is not None]).astype(jnp.float32))])[0] == 0
    scale, counter = optimizer.dynamic_scale, optimizer.step_counter
    inner, factor, steps = optimizer.inner_optimizer, scale.value, counter.value
    state = [*inner._trainable_variables, *inner.variables]
    before = [v.value for v in state]
    inner.apply([None if g is None else g / factor.astype(g.dtype) for g in grads], variables)
    for variable, value in zip(state, before, strict=True):
        if variable.value is not value:
            variable.assign(jnp.where(finite, variable.value, value))
    grows = steps == optimizer.dynamic_growth_steps - 1
    counter.assign(jnp.where(finite & ~grows, steps + 1, 0))
    scale.assign(jnp.where(finite, jnp.where(grows, factor * 2, factor), factor / 2))


def works_on_slices(optimizer: Any) -> bool:
    """Whether an optimizer's update of an element depends only on that element, its gradient, its state, and norms."""
    if isinstance(optimizer, _internals.LossScaleOptimizer):
        return works_on_slices(optimizer.inner_optimizer)
    return type(optimizer) in _ELEMENT_BY_ELEMENT and all(
        v.constraint is None and not getattr(v, "overwrite_with_gradient", False) for v in optimizer._trainable_variables
    )


class _Working(threading.local):
    is_cut: list[bool] | None = None  # for each gradient of the update that is being computed


_working = _Working()


def is_working() -> bool:
    """Whether an update on slices is being computed."""
    return _working.is_cut is not None


@contextmanager
def _cut_gradients(is_cut: list[bool]) -> Iterator[None]:
    """Note which gradients of an update are slices."""
    _working.is_cut = is_cut
    try:
        yield
    finally:
        _working.is_cut = None


def accumulate(original: Callable[..., Any], optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
    """Let Keras update variables with accumulators that have the shapes of the slices that are accumulated."""
    known = optimizer._accumulated_gradients if optimizer.gradient_accumulation_steps and is_working() else None
    if known is None:
        return original(optimizer, grads, variables)
    optimizer.__dict__["_accumulated_gradients"] = [None if v is None else _Accumulator(v) for v in known]
    try:
        return original(optimizer, grads, variables)
    finally:
        optimizer.__dict__["_accumulated_gradients"] = known


class _Accumulator:
    """This replica's slice of an accumulator, as Keras uses it."""

    def __init__(self, variable: Any):
        self.value = variable.value
        self.shape, self.dtype = self.value.shape, self.value.dtype
        self.assign = variable.assign


# Norms


def clip(original: Callable[..., Any], optimizer: Any, grads: Sequence[Any]) -> Any:
    """Clip gradients. Norms of slices are those of the whole gradients."""
    if _working.is_cut is None or not (optimizer.clipnorm or optimizer.global_clipnorm):
        return original(optimizer, grads)
    squares = _squares(grads, _working.is_cut)
    if optimizer.clipnorm:
        most = optimizer.clipnorm
        return [g * most / jnp.maximum(jnp.sqrt(s), most).astype(g.dtype) for g, s in zip(grads, squares, strict=True)]
    norm, most = jnp.sqrt(jnp.sum(jnp.stack(squares))), optimizer.global_clipnorm
    factor = most * jnp.minimum(1.0 / norm, 1.0 / most) + (norm - norm)  # NaN if the norm is not finite, as in Keras
    return [g * factor.astype(g.dtype) for g in grads]


def _squares(grads: Sequence[Any], is_cut: Sequence[bool]) -> list[Any]:
    """Return the sum of squares of each whole gradient."""
    squares = [jnp.sum(jnp.square(g)) for g in grads]
    totals = iter(_sum([s for s, cut in zip(squares, is_cut, strict=True) if cut]))
    return [next(totals) if cut else s for s, cut in zip(squares, is_cut, strict=True)]


def _sum(values: list[Any]) -> list[Any]:
    """Sum each value over the replicas, all in one small all-reduce."""
    context = active_replica_context()
    assert context is not None, "slices are in replicas"
    return context.all_reduce(ReduceOp.SUM, values) if values else []
