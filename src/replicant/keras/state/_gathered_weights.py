"""Weights in slices, as the training step of ``fit`` reads them: gathered, and gathered again for the backward pass.

Keras differentiates ``compute_loss_and_updates`` with respect to the weights. Here, that function has a gradient of its own, which
keeps slices only. The optimizer, which Keras calls afterwards, sees slices of weights, gradients and state.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras

from ...replicas._placement import Placement
from ...tracing.gradients._gathered_variable import gathered_p, vjp
from .._internals import JAXTrainer

_NAMES = ("train_step", "compute_loss_and_updates")


class _Step(threading.local):
    """The devices of the training step that is being traced, if it is left to `compute_loss` to gather its weights."""

    placement: Placement | None = None


_step = _Step()


def follows_keras(model: Any) -> bool:
    """Whether a model's training step is Keras's own, which only gives its weights to its loss and to its optimizer."""
    return all(getattr(type(model), name) is getattr(JAXTrainer, name) and name not in vars(model) for name in _NAMES)


@contextmanager
def gathering(placement: Placement | None) -> Iterator[None]:
    """Let `compute_loss` gather the weights of a training step that is traced in the ``with`` block."""
    before, _step.placement = _step.placement, placement
    try:
        yield
    finally:
        _step.placement = before


def compute_loss(original: Callable[..., Any], model: Any, trainable: Any, others: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what ``compute_loss_and_updates`` does, on weights of which each device has a slice."""
    # Keras knows the losses of layers by their ids, and would drop one that has the id of one of an earlier trace.
    model._clear_losses()
    placement = _step.placement
    if placement is None:
        return original(model, trainable, others, *args, **kwargs)
    given = {name: kwargs.pop(name) for name in ("optimizer_variables",) if name in kwargs}

    def whole(variable: Any, part: Any, shift: Any = None) -> Any:
        axis = _axis(part, placement)
        if axis is None:
            value = part if shift is None else shift
            return placement.as_used(value, placement.model_cut(variable.path, part.shape, part.dtype))
        shift = jnp.zeros(part.shape, part.dtype) if shift is None else shift
        return gathered_p.bind(part, shift, axis=axis, whole=placement.in_use(variable.path, part.shape, part.dtype))

    def forward(trainable: list[Any], others: list[Any], args: Any, given: Any) -> Any:
        (loss, aux), _ = loss_and_pullback(trainable, others, args, given)
        return loss, aux

    def loss_and_pullback(trainable: list[Any], others: list[Any], args: Any, given: Any) -> Any:
        def loss_of(shifts: list[Any]) -> Any:
            weights = list(map(whole, model.trainable_variables, trainable, shifts))
            rest = list(map(whole, model.non_trainable_variables, others))
            loss, (unscaled, outputs, updated, metrics) = original(model, weights, rest, *args, **given, **kwargs)
            updated = [part if new is old else new for part, old, new in zip(others, rest, updated, strict=True)]
            return loss, (unscaled, outputs, updated, metrics)

        shifts = [x if _axis(x, placement) is None else jnp.zeros(x.shape, x.dtype) for x in trainable]
        held = [x for x in [*trainable, *others] if _axis(x, placement) is None]
        loss, pullback, aux = vjp(loss_of, shifts, held)
        return (loss, aux), pullback

    def gradients(pullback: Any, cotangents: Any) -> Any:
        (found,) = pullback(cotangents[0])  # Keras takes no gradient of what else it returns
        looked_up = _looked_up(model) if placement.has_model_axis else set()
        for i, variable in enumerate(model.trainable_variables):
            if id(variable) in looked_up:
                used = placement.in_use(variable.path, found[i].shape, found[i].dtype)
                found[i] = jax.lax.with_sharding_constraint(found[i], used)
        return [placement.constrain(x, slice_axis=_axis(x, placement)) for x in found], None, None, None

    with_gradient = jax.custom_vjp(forward)
    with_gradient.defvjp(loss_and_pullback, gradients)
    return with_gradient(list(trainable), list(others), args, given)


def _looked_up(model: Any) -> set[int]:
    """Return the ids of the weights of a model's embeddings, whose gradients scatter rows.

    XLA would cut these rows as the gradient lies at rest, by their width over the replicas. If a reshape comes next, as before a
    convolution, it cannot do so without gathering them. So their gradients are summed as replicas use them, and cut after that.
    """
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    return {id(variable) for layer in layers for variable in layer.trainable_variables}


def _axis(x: Any, placement: Placement) -> int | None:
    return placement.slice_axis(x.shape, x.dtype, slot=False)
