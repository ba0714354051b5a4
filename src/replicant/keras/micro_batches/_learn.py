"""What the traces of a micro-batch, and of one of twice its rows, tell of a model: what it changes, and what its losses are."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import keras

from ...errors import ArgumentError
from ...reductions._micro_batches import Kind, kinds
from ...replicas._micro import Rows, shapes_of
from ...replicas._placement import Placement
from ...tracing.jaxprs._host_calls import host_call_in
from ..losses._loss_sums import LossSums
from ._forward import Forward
from ._layer_state import tell_state
from ._weights import Layout


@dataclasses.dataclass(frozen=True)
class Learned:
    """What is known of a model's micro-batches.

    Attributes:
        changed: Which of the variables that are not trained the model changes.
        kinds: How the losses of layers depend on rows.
        divisors: Those of the losses of `compile` for the whole batch: None if there is none, ... if the rows must tell.
        num_losses: The number of the losses of `compile` that have metrics.
        tree: The structure of the outputs.
    """

    changed: frozenset[int]
    kinds: list[Kind]
    divisors: list[Any]
    num_losses: int
    tree: Any


def learn(forward: Forward, layouts: Sequence[Sequence[Layout]], rows: Rows, *, keeps_outputs: bool) -> Learned:
    """Trace micro-batches of rows like `rows`. `layouts` are those of the variables that are trained, and of those that are not.

    Raises:
        ArgumentError: If it is not known how the losses of micro-batches make that of the whole batch.
    """
    size = min(forward.parts.size, len(rows[0]))
    one, sums, _ = _trace(forward, layouts, shapes_of(rows, size), keeps_outputs)
    two, sums_of_two, (changed, tree) = _trace(forward, layouts, shapes_of(rows, 2 * size), keeps_outputs)
    if any(isinstance(x, int) and y != 2 * x for x, y in zip(sums.own_divisors, sums_of_two.own_divisors, strict=True)):
        raise ArgumentError(
            "use_micro_batches: a loss function does not return its values for each row, so it is not known how those of "
            "micro-batches make the loss of the whole batch. Return one loss per example, and leave the reduction to Keras."
        )
    compiled = forward.model._compile_loss
    if any(isinstance(each.loss, keras.losses.Circle) for each in ([] if compiled is None else compiled._flat_losses)):
        raise ArgumentError(
            "use_micro_batches: keras.losses.Circle compares the rows of a batch with each other, which those of different "
            "micro-batches cannot be. Train without micro-batches."
        )
    _check_host_calls(one.jaxpr, forward.placement)
    tell_state(forward.model, changed)
    found = kinds(one, two)
    if {Kind.UNKNOWN, Kind.RATIO} & {*found}:
        raise ArgumentError(
            "use_micro_batches: a layer adds a loss (add_loss, or an activity regularizer) that is neither a sum nor a mean "
            "over the rows of the batch, so it is not known how those of micro-batches make that of the whole batch. Add a sum "
            "or mean over rows, or write a custom loop."
        )
    divisors = [x * forward.batch.rows / size if isinstance(x, int) else None if x is None else ... for x in sums.own_divisors]
    return Learned(changed, found, divisors, 0 if compiled is None else len(compiled.metrics or ()), tree)


def _trace(forward: Forward, layouts: Sequence[Sequence[Layout]], rows: Rows, keeps_outputs: bool) -> tuple[Any, LossSums, Any]:
    """Return the trace of the losses of layers, those of `compile`, and what the model changes, with the tree of its outputs."""
    sums, found = LossSums(), list[Any]()

    def losses_of(rows: Rows) -> list[Any]:
        weights, rest = ([layout.zeros() for layout in each] for each in layouts)
        _, losses, outputs, after = forward(weights, rest, rows, sums)
        leaves, tree = jax.tree.flatten(outputs)
        if keeps_outputs:
            _check_outputs(leaves, len(rows[0]))
        found.append((frozenset(i for i, (new, old) in enumerate(zip(after, rest, strict=True)) if new is not old), tree))
        return losses

    return jax.make_jaxpr(losses_of)(rows), sums, found[-1]


def _check_host_calls(jaxpr: Any, placement: Placement) -> None:
    """Raise if replicas of several devices call the host, which JAX cannot lower while XLA shares out their work."""
    if placement.has_model_axis and (found := host_call_in(jaxpr)) is not None:
        raise ArgumentError(
            f"use_micro_batches: the model calls the host ({found}), but each replica has {placement.model_parallel_size} devices "
            "(model_parallel_size), and JAX has no such calls in the micro-batches of one. Use accumulate_steps=1 or "
            "model_parallel_size=1, or leave out the call."
        )


def _check_outputs(leaves: Sequence[Any], size: int) -> None:
    if any(x.ndim == 0 or x.shape[0] % size for x in leaves):
        raise ArgumentError(
            "use_micro_batches: the metrics need the outputs of the whole batch, but an output of the model does not have the "
            f"rows of the batch along its first axis: {', '.join(str(x.shape) for x in leaves)} for {size} rows. Compile the "
            "model without metrics."
        )
