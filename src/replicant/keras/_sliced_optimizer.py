"""Optimizer state in slices: each replica keeps and updates one part of it (ZeRO stage 1).

A placement with ``slices_slots`` cuts the optimizer's variables over the replicas. For an update, an optimizer that works element
by element gets its replica's slices of weights, gradients and state, and then the weights are put together again. An optimizer that
looks at whole tensors (norms, factors, constraints, accumulated gradients) gets the whole state, and keeps its slice of what it
assigns.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from ..replicas._placement import Placement
from ..variables._recorder import ReplicaRecorder, current_recorder
from ..variables._ref import Ref
from ._refs import ref_of_keras

# Their update of an element depends only on that element, its gradient and its state.
_ELEMENT_BY_ELEMENT = tuple(
    getattr(keras.optimizers, name)
    for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD")
)


def axes_of(optimizer: Any, variables: Sequence[Any] | None, placement: Placement) -> list[int | None] | None:
    """Return the axis along which each variable's gradient is cut once it is summed; None if the optimizer needs them whole."""
    known = optimizer._trainable_variables
    recorder = current_recorder()
    if placement.slices_from is None or not isinstance(recorder, ReplicaRecorder) or not recorder.slices:
        return None
    if not _is_element_by_element(optimizer, known):
        return None
    return [placement.slice_axis(tuple(v.shape), v.dtype, slot=True) for v in (known if variables is None else variables)]


def apply(
    original: Callable[..., Any],
    optimizer: Any,
    grads: list[Any],
    variables: Sequence[Any] | None,
    placement: Placement,
    *,
    cut_already: bool = False,
) -> Any:
    """Call ``optimizer.apply`` on the gradients of the global batch, inside a replica."""
    known = optimizer._trainable_variables
    given = known if variables is None else variables
    recorder = current_recorder()
    if not isinstance(recorder, ReplicaRecorder) or not recorder.slices or not _is_element_by_element(optimizer, known):
        return original(optimizer, grads, given)

    def part_of(gradient: Any, variable: Any) -> Any:
        axis = placement.slice_axis(tuple(variable.shape), variable.dtype, slot=True)
        return gradient if gradient is None or axis is None or cut_already else recorder.slice_of(gradient, axis)

    axes = [(v, placement.slice_axis(tuple(v.shape), v.dtype, slot=True)) for v in known]
    cut: dict[Ref, int] = {ref_of_keras(v): axis for v, axis in axes if axis is not None}
    with recorder.working_on_slices(cut):
        return original(optimizer, [part_of(g, v) for g, v in zip(grads, given, strict=True)], given)


def _is_element_by_element(optimizer: Any, variables: Sequence[Any]) -> bool:
    return (
        type(optimizer) in _ELEMENT_BY_ELEMENT
        and not optimizer.clipnorm
        and not optimizer.global_clipnorm
        and not optimizer.gradient_accumulation_steps
        and all(v.constraint is None for v in variables)
    )
