"""Loss helpers: sums over the global batch, so that gradients summed over replicas are those of one device."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .errors import ArgumentError, ArgumentTypeError, ContextError
from .reductions._search import AVERAGE
from .replicas._context import active_replica_context, get_replica_context
from .replicas._values import is_distributed
from .tracing._graph import calling_line


def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> jax.Array:
    """Sum of the (weighted) per-example losses of this replica, divided by the size of the global batch.

    Args:
        per_example_loss: array of rank >= 1, one loss per example along axis 0.
        sample_weight: weights that broadcast to the losses; a trailing axis of size 1 is dropped, as Keras losses do.
        global_batch_size: examples in the whole step; weights do not change it. Default: replicas times this replica's rows,
            which is right only while all replicas have equally many.

    Returns: a scalar; the sum over replicas is the loss of the step. 0.0 for no examples.

    Raises ArgumentError for a scalar loss or a negative or non-scalar size, ArgumentTypeError for a float size, ContextError in
    cross-replica context without global_batch_size. Semantics: tf.nn.compute_average_loss.

    >>> import jax.numpy as jnp
    >>> print(compute_average_loss(jnp.asarray([2.0, 3.0]), global_batch_size=4))
    1.25
    """
    if is_distributed(per_example_loss):
        raise ArgumentTypeError("compute_average_loss takes one replica's losses, got a distributed value: call it inside `run`.")
    losses = jnp.asarray(per_example_loss)
    if losses.ndim == 0:
        raise ArgumentError(
            "compute_average_loss needs one loss per example (rank >= 1), got a scalar. Use a loss with reduction='none', or "
            "divide the sum by the global batch size yourself."
        )
    if not jnp.issubdtype(losses.dtype, jnp.inexact):
        losses = losses.astype(jnp.result_type(float))
    if sample_weight is not None:
        losses = losses * _matching_weights(jnp.asarray(sample_weight).astype(losses.dtype), losses)
    total = jnp.sum(losses)
    size = _global_batch_size(global_batch_size, losses.shape[0])
    context = active_replica_context()
    if context is not None and global_batch_size is not None and isinstance(size, int) and sample_weight is None:
        context.counts.append((losses.shape[0], size, calling_line()))
    if isinstance(size, int):
        with jax.named_scope(AVERAGE):
            return total / size if size else jnp.zeros_like(total)
    return jnp.where(size == 0, jnp.zeros_like(total), total / jnp.maximum(size, 1).astype(total.dtype))


def _global_batch_size(size: Any, num_rows: int) -> Any:
    if size is None:
        context = get_replica_context()
        if context is None:
            raise ContextError(
                "compute_average_loss was called in cross-replica context, where the number of examples of a replica is not "
                "known. Call it inside `strategy.run`, or pass global_batch_size."
            )
        return num_rows * context.num_replicas_in_sync
    if isinstance(size, bool) or not (isinstance(size, int) or jnp.issubdtype(jnp.asarray(size).dtype, jnp.integer)):
        raise ArgumentTypeError(f"global_batch_size must be an int; got {size!r}.")
    if jnp.ndim(size) != 0:
        raise ArgumentError(f"global_batch_size must be a scalar; got an array of shape {jnp.shape(size)}.")
    if isinstance(size, Tracer):
        return size
    if int(size) < 0:
        raise ArgumentError(f"global_batch_size must be non-negative; got {int(size)}.")
    return int(size)


def _matching_weights(weights: jax.Array, losses: jax.Array) -> jax.Array:
    if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while 0 < weights.ndim < losses.ndim:
        weights = weights[..., None]
    try:
        jnp.broadcast_shapes(weights.shape, losses.shape)
    except ValueError:
        raise ArgumentError(
            f"sample_weight of shape {weights.shape} does not broadcast to losses of shape {losses.shape}: give one weight per "
            "example."
        ) from None
    return weights


def scale_regularization_loss(regularization_loss: Any) -> jax.Array:
    """A regularization loss divided by the number of replicas, so that the sum over replicas counts it once.

    Args:
        regularization_loss: array of any shape; it is summed.

    Returns: a scalar. Raises ContextError in cross-replica context. Semantics: tf.nn.scale_regularization_loss.

    >>> print(scale_regularization_loss(6.0))
    6.0
    """
    context = active_replica_context() or get_replica_context()
    if context is None:
        raise ContextError(
            "scale_regularization_loss was called in cross-replica context; a regularization loss is part of a replica's loss. "
            "Call it inside `strategy.run`."
        )
    return jnp.sum(jnp.asarray(regularization_loss)) / context.num_replicas_in_sync
