"""Losses scaled to the global batch, so that the sum of the replicas' gradients is the gradient of one device."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .errors import ArgumentError, ArgumentTypeError, ContextError
from .reductions._micro_batches import PENALTY
from .reductions._search import AVERAGE
from .replicas._context import active_replica_context, get_replica_context
from .replicas._micro import active_micro_batch
from .replicas._values import is_distributed
from .tracing.jaxprs._graph import calling_line


def compute_average_loss(per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None) -> jax.Array:
    """Sum this replica's (weighted) per-example losses, and divide the sum by the size of the global batch.

    Semantics: tf.nn.compute_average_loss.

    Args:
        per_example_loss: An array of rank >= 1, with one loss per example along axis 0.
        sample_weight: Weights that broadcast to the losses. A trailing axis of size 1 is dropped, as in Keras losses.
        global_batch_size: The number of examples in the whole step, whatever their weights: an int or a scalar integer array. The
            default is the number of this replica's examples (those of all its micro-batches) times the number of replicas, which
            is right only if all replicas have the same number. If not, a ReductionWarning says so.

    Returns:
        A scalar, 0.0 if there are no examples. Its sum over the replicas is the loss of the step.

    Raises:
        ArgumentError: If the loss is a scalar, if the weights do not broadcast to it, or if the size is negative or not a scalar.
        ArgumentTypeError: If the size is not an integer, or if the loss is a distributed value.
        ContextError: In cross-replica context, if `global_batch_size` is not given.

    >>> import jax.numpy as jnp
    >>> print(compute_average_loss(jnp.asarray([2.0, 3.0]), global_batch_size=4))
    1.25
    """
    if is_distributed(per_example_loss):
        raise ArgumentTypeError(
            f"compute_average_loss takes the losses of one replica; got a {type(per_example_loss).__name__} value. Call it inside "
            "`strategy.run`."
        )
    losses = jnp.asarray(per_example_loss)
    if losses.ndim == 0:
        raise ArgumentError(
            "compute_average_loss needs one loss per example (rank >= 1); got a scalar. Use a loss with reduction='none', or "
            "divide the sum by the global batch size yourself."
        )
    if not jnp.issubdtype(losses.dtype, jnp.inexact):
        losses = losses.astype(jnp.result_type(float))
    if sample_weight is not None:
        losses = losses * _matching_weights(jnp.asarray(sample_weight).astype(losses.dtype), losses)
    total = jnp.sum(losses)
    size = _global_batch_size(global_batch_size, losses.shape[0])
    context = active_replica_context()
    if context is not None and (global_batch_size is None or (isinstance(size, int) and sample_weight is None)):
        context.counts.append((_rows_of_batch(losses.shape[0]), None if global_batch_size is None else size, calling_line()))
    if isinstance(size, int):
        with jax.named_scope(AVERAGE):
            return total / size if size else jnp.zeros_like(total)
    return jnp.where(size == 0, jnp.zeros((), total.dtype), total / jnp.maximum(size, 1).astype(total.dtype))


def _rows_of_batch(num_rows: int) -> int:
    """Return the number of rows in the replica's whole batch, of which a micro-batch may have only a part."""
    micro_batch = active_micro_batch()
    return num_rows if micro_batch is None else num_rows * micro_batch.total // micro_batch.rows


def _global_batch_size(size: Any, num_rows: int) -> Any:
    if size is None:
        context = get_replica_context()
        if context is None:
            raise ContextError(
                "compute_average_loss was called in cross-replica context, where the number of examples per replica is not "
                "known. Call it inside `strategy.run`, or pass global_batch_size."
            )
        return _rows_of_batch(num_rows) * context.num_replicas_in_sync
    if isinstance(size, bool) or not (isinstance(size, int) or _is_of_integers(size)):
        raise ArgumentTypeError(f"global_batch_size must be an int; got {size!r}.")
    if shape := jnp.asarray(size).shape:
        raise ArgumentError(f"global_batch_size must be a scalar; got an array of shape {shape}.")
    if isinstance(size, Tracer):
        return size
    if int(size) < 0:
        raise ArgumentError(f"global_batch_size must be non-negative; got {int(size)}.")
    return int(size)


def _is_of_integers(size: Any) -> bool:
    try:
        return jnp.issubdtype(jnp.asarray(size).dtype, jnp.integer)
    except TypeError:  # a text, or another object of which JAX makes no array
        return False


def _matching_weights(weights: jax.Array, losses: jax.Array) -> jax.Array:
    if weights.ndim == losses.ndim + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    while 0 < weights.ndim < losses.ndim:
        weights = weights[..., None]
    try:
        jnp.broadcast_shapes(weights.shape, losses.shape)
    except ValueError:
        raise ArgumentError(
            f"sample_weight of shape {weights.shape} does not broadcast to losses of shape {losses.shape}. Pass one weight per "
            "example."
        ) from None
    return weights


def scale_regularization_loss(regularization_loss: Any) -> jax.Array:
    """Divide a regularization loss by the number of replicas, so that the sum over the replicas counts it once.

    In the function of a ``value_and_grad`` with `accumulate_steps`, also divide it by the number of micro-batches.

    Semantics: tf.nn.scale_regularization_loss.

    Args:
        regularization_loss: An array of any shape, which is summed.

    Returns:
        A scalar.

    Raises:
        ContextError: In cross-replica context.

    >>> print(scale_regularization_loss(6.0))
    6.0
    """
    context = active_replica_context() or get_replica_context()
    if context is None:
        raise ContextError(
            "scale_regularization_loss was called in cross-replica context, but a regularization loss is part of one replica's "
            "loss. Call it inside `strategy.run`."
        )
    micro_batch = active_micro_batch()
    parts = context.num_replicas_in_sync * (1 if micro_batch is None else micro_batch.number)
    total = jnp.sum(jnp.asarray(regularization_loss))
    with jax.named_scope(PENALTY):
        return total / parts
