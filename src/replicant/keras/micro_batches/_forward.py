"""The forward pass of a model on some rows of one replica, under ``jax.shard_map``."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import keras

from ...errors import ArgumentError
from ...replicas._collectives import SingleReplica
from ...replicas._micro import MicroBatch, Parts, in_micro_batch
from ...replicas._placement import Placement
from ..cpu._recurrent import in_global_view
from ..losses._loss_sums import InLayers, LossSums, summing
from ._rows import Batch


class Forward:
    """The forward pass of a model.

    Args:
        model: The model.
        placement: The devices.
        batch: The rows of all replicas.
        steps: The number of micro-batches of each replica.

    Attributes:
        parts: The micro-batches of the rows of which all replicas have equally many.
        group: The replicas.
    """

    def __init__(self, model: Any, placement: Placement, batch: Batch, steps: int):
        self.model, self.batch = model, batch
        self.placement = dataclasses.replace(placement, factored=False)
        self.parts = Parts(batch.each, max(1, -(-(batch.each + bool(batch.tail)) // steps)))
        self.group: Any = SingleReplica()
        if not placement.on_one_device:
            self.group = placement.mesh_axis()
        self._training = {"training": True} if model._call_has_training_arg else {}

    def __call__(self, trainable: Sequence[Any], others: Sequence[Any], rows: Sequence[Any], sums: LossSums) -> Any:
        """Return the loss of `compile`, those of layers, the outputs, and the new values of the variables that are not trained."""
        model = self.model
        x, y, weights = self.batch.data(rows)
        replica = None if self.placement.on_one_device else self.group.replica_id()
        micro_batch = MicroBatch(len(rows[0]), self.batch.rows, 1, replica)
        alone = dataclasses.replace(self.placement, fused=True)  # what layers see of the devices
        with in_micro_batch(micro_batch), in_global_view(alone):
            # Keras knows the losses of layers by their ids, and would drop one that has the id of one of an earlier trace.
            model._clear_losses()
            with summing(InLayers()):
                outputs, after, losses = model.stateless_call(trainable, others, x, return_losses=True, **self._training)
            compiled = model._compile_loss
            with keras.StatelessScope(state_mapping=self._state(trainable, others)), summing(sums):
                loss = None if compiled is None else compiled(y, outputs, weights)
            if len(sums.values) != (0 if compiled is None else len(compiled._flat_losses)):
                raise ArgumentError(
                    "use_micro_batches: a loss of the model does not leave the reduction of its values to Keras exactly once. "
                    "Write a loss function that returns one loss per example, or override `call` and not `__call__`."
                )
        losses = [jnp.sum(jnp.asarray(each).astype(jnp.promote_types(jnp.result_type(each), jnp.float32))) for each in losses]
        return (jnp.zeros(()) if loss is None else loss), losses, outputs, after

    def _state(self, trainable: Sequence[Any], others: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Return what the loss of `compile` reads. Its metrics get the losses of the whole batch later."""
        model = self.model
        metrics = [] if model._compile_loss is None else model._compile_loss.variables
        return [
            *zip(model.trainable_variables, trainable, strict=True),
            *zip(model.non_trainable_variables, others, strict=True),
            *((variable, jnp.zeros(variable.shape, variable.dtype)) for variable in metrics),
        ]
