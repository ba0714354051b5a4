"""Calls losses. One with a mean-type reduction raises inside ``run``, as the tf.distribute guide prescribes."""

from typing import Any

from ...errors import LossReductionError
from ...replicas._context import (
    active_replica_context,
    active_strategy,
    default_strategy,
    has_strategy,
)
from . import _labels

_MEAN_TYPES = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def call_loss(original: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a loss. Raise if it would divide by the number of rows of one replica."""
    if loss.reduction in _MEAN_TYPES and active_replica_context() is not None and active_strategy() is not default_strategy():
        raise LossReductionError(
            f"The loss {loss.name!r} has reduction={loss.reduction!r}, which divides by the number of rows of one replica. Summed "
            "over the replicas, that is not the mean over the global batch. Create it with reduction='none' (or 'sum') and "
            "use replicant.compute_average_loss(per_example_loss, global_batch_size=...)."
        )
    result = original(loss, *args, **kwargs)
    return _labels.marked(loss, result, *args, **kwargs) if has_strategy() or _labels.in_step_of_strategy() else result
