"""The training step of ``fit`` in micro-batches, with the numbers of the whole batch.

The replicas compute the gradients and the outputs of the whole batch (``_replica.py``). Around this, the optimizer
and the metrics see what they see in Keras's own step.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras

from ..._accumulate import check_steps
from ...errors import ArgumentError, ArgumentTypeError
from .._batch_statistics import asks_for_replica_statistics
from ..cpu._recurrent import placement_of_step
from ..state._gathered_weights import follows_keras
from ._replica import MicroBatches
from ._rows import Batch

_ASKED = "_replicant_accumulate_steps"


def use_micro_batches(model: Any, accumulate_steps: int) -> None:
    """Make ``fit`` compute each batch of `model` in micro-batches, with the memory of one micro-batch's activations.

    Loss, metrics, gradients and weights are those of the whole batch, also for a batch that does not divide, and with sample
    weights and masks: sums and their divisors are added up. So the loss of a row must not depend on other rows, as a contrastive
    loss does. Each replica cuts its rows into `accumulate_steps` micro-batches. The replicas sum their gradients once, after the
    last one, so each of them holds the gradients of all weights until then. ``BatchNormalization`` gives other numbers, since it
    normalizes each micro-batch by its own statistics (ReductionWarning says so), and so do random layers, which draw for each
    micro-batch, and other layers that assign weights when they are called (ReductionWarning names these weights). ``evaluate`` and
    ``predict`` stay as they are.

    Metrics of ``compile`` get the outputs of the whole batch. If there are such metrics, these outputs are kept until the end.

    Args:
        model: A ``keras.Model``, compiled or not, under a synchronous strategy or none. The setting belongs to this object: call
            the function again for a copy, or for a model that you load from a file.
        accumulate_steps: The number of micro-batches of each replica; 1 computes whole batches again. A replica with fewer rows
            has fewer micro-batches.

    Raises:
        ArgumentTypeError: If `model` is not a ``keras.Model``, or `accumulate_steps` not an int.
        ArgumentError: If `accumulate_steps` is less than 1. From `fit`: if the model has a ``train_step``, ``compute_loss`` or
            ``compute_loss_and_updates`` of its own; if a loss does not give a value for each row, or compares rows with each other
            (``keras.losses.Circle``); if the model is quantized to float8; if a layer adds a loss that is
            neither a sum nor a mean over rows; if steps are not compiled; under a ParameterServerStrategy; if the model calls the
            host (``jax.pure_callback``) under a FullyShardedStrategy with a model axis.

    >>> import keras, replicant
    >>> with replicant.MirroredStrategy().scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> replicant.keras.use_micro_batches(model, accumulate_steps=8)
    """
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(f"use_micro_batches: model must be a keras.Model; got {type(model).__name__}.")
    model.__dict__[_ASKED] = check_steps(accumulate_steps, "use_micro_batches")  # no attribute of the layer: Keras would track it
    model.train_function = None  # as compile does, so that the step is traced again


def asked_steps(model: Any) -> int:
    """Return into how many micro-batches a model's batches are cut."""
    return model.__dict__.get(_ASKED, 1)


def in_parts(model: Any, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a model's training step, computed in micro-batches if the model asks for it."""
    steps = asked_steps(model)
    if steps == 1 or computes_parts(step):
        return step
    own = [name for name in ("train_step", "compute_loss_and_updates", "compute_loss") if _is_own(model, name)]
    if own or not follows_keras(model):
        raise ArgumentError(
            f"use_micro_batches: {type(model).__name__} has a {own[0]} of its own, and it is not known how its micro-batches make "
            "the whole batch. Leave the step to Keras, or write a custom loop with replicant.value_and_grad(fn, variables, "
            "accumulate_steps=...)."
        )
    if asks_for_replica_statistics(model):
        raise ArgumentError(
            "use_micro_batches and use_replica_statistics contradict each other: in micro-batches, a BatchNormalization uses the "
            "statistics of one micro-batch of one replica. Use one of the two."
        )
    if any(getattr(variable, "overwrite_with_gradient", False) for variable in model.trainable_variables):
        raise ArgumentError(
            "use_micro_batches: the model is quantized to float8. What its scales get as gradients are new values, and those of "
            "micro-batches do not add up. Train it without micro-batches, or with mixed_bfloat16."
        )
    return MicroBatchStep(model, steps)


def computes_parts(step: Any) -> bool:
    """Whether a step, or one that it wraps, computes micro-batches."""
    while step is not None and not isinstance(step, MicroBatchStep):
        step = getattr(step, "__wrapped__", None)
    return step is not None


def _is_own(model: Any, name: str) -> bool:
    return name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name)


class MicroBatchStep:
    """Keras's training step, ``(state, data) -> (logs, state)``, in micro-batches.

    Args:
        model: The model.
        steps: The number of micro-batches of each replica.
    """

    def __init__(self, model: Any, steps: int):
        self._model, self._steps = model, steps
        self.__name__ = "train_step"

    def __call__(self, state: Any, data: Any) -> Any:
        """Compute the step in a trace, for the devices of that trace.

        Raises:
            ArgumentError: If the step is not compiled.
        """
        placement = placement_of_step()
        if placement is None:
            raise ArgumentError(
                "use_micro_batches: the steps of this model are not compiled, and would take the memory of whole batches. Call "
                "model.compile(...) without run_eagerly=True and jit_compile=False."
            )
        model, (trainable, others, slots, metrics) = self._model, state
        batch = Batch(data, 1 if placement.on_one_device else placement.num_replicas)
        keeps_outputs = model._compile_metrics is not None or _is_own(model, "compute_metrics")
        scale = _loss_scale(model.optimizer, slots)
        parts = MicroBatches(model, placement, batch, self._steps, scale, keeps_outputs=keeps_outputs)
        found = parts.compute(trainable, others)
        trainable, slots = model.optimizer.stateless_apply(slots, found.gradients, trainable)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        mapping = list(zip(model.metrics_variables, metrics, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            model._loss_tracker.update_state(found.loss, sample_weight=batch.rows)
            for metric, value in zip(model._compile_loss.metrics if model._compile_loss else [], found.losses, strict=False):
                metric.update_state(value, sample_weight=batch.rows)
            logs = model.compute_metrics(x, y, found.outputs, weights)
        after = [_known(scope, variable, value) for variable, value in mapping]
        return logs, (trainable, found.others, slots, after)


def _known(scope: Any, variable: Any, value: Any) -> Any:
    new = scope.get_current_value(variable)
    return value if new is None else new


def _loss_scale(optimizer: Any, slots: Any) -> Any:
    """Return by what an optimizer multiplies the loss."""
    with keras.StatelessScope(state_mapping=list(zip(optimizer.variables, slots, strict=True))):
        return optimizer.scale_loss(jnp.ones(()))
