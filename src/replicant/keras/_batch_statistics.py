"""BatchNormalization in ``fit``: the statistics of the global batch or, on request, those of each replica's own rows.

A training step is traced in the global view, so by default the statistics are those of the whole batch. If a model asks for the
replicas' own statistics, each BatchNormalization is computed on every replica's rows separately. The moving statistics that result
are averaged over the replicas that have rows, as tf.distribute does.
"""

import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras

from ..errors import ArgumentError, ArgumentTypeError, ReductionWarning
from ..input.sharding._rebatch import chunk_sizes
from ..replicas._context import active_replica_context
from ..replicas._micro import active_micro_batch

_ASKED = "_replicant_replica_statistics"


def use_replica_statistics(model: Any) -> None:
    """Make ``fit`` normalize each replica's rows by their own statistics in every BatchNormalization of `model`.

    This is what tf.distribute does unless a layer has ``synchronized=True``. Without this call, ``fit`` uses the statistics of the
    global batch, which do not depend on the number of replicas. A batch of b rows is cut into chunks of ceil(b / n) rows for n
    replicas. Each replica that has rows computes moving statistics, and the model keeps their mean. Nothing changes with one
    replica, or in ``evaluate`` and ``predict``, which use the moving statistics.

    Args:
        model: A ``keras.Model``, built or not, compiled or not. The setting belongs to this object: call the function again for a
            copy, or for a model that you load from a file.

    Raises:
        ArgumentTypeError: If `model` is not a ``keras.Model``.
        ArgumentError: From the training step, if the input of a BatchNormalization does not have the rows of the batch along its
            first axis, or if the layer normalizes along that axis.

    >>> import keras, replicant
    >>> with replicant.MirroredStrategy().scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    ...     model.compile("sgd", "mse")
    >>> replicant.keras.use_replica_statistics(model)
    """
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(f"use_replica_statistics: model must be a keras.Model; got {type(model).__name__}.")
    model.__dict__[_ASKED] = True  # not an attribute of the layer: Keras would try to track it
    model.train_function = None  # as compile does, so that the step is traced again


def asks_for_replica_statistics(model: Any) -> bool:
    """Whether `use_replica_statistics` was called for a model."""
    return _ASKED in model.__dict__


class _Cut(threading.local):
    """The chunks of the batch in the step that is being traced; empty if the batch is not cut."""

    chunks: tuple[int, ...] = ()


_cut = _Cut()


def with_asked(model: Any, step: Callable[..., Any], num_replicas: int) -> Callable[..., Any]:
    """Return a training step of the model, computed with the statistics that the model asks for."""
    if num_replicas == 1 or _ASKED not in model.__dict__:
        return step

    @functools.wraps(step)
    def cut_step(state: Any, data: Any) -> Any:
        rows = next((leaf.shape[0] for leaf in jax.tree.leaves(data) if getattr(leaf, "ndim", 0)), 0)
        with _cut_into(tuple(size for size in chunk_sizes(rows, num_replicas) if size)):
            return step(state, data)

    return cut_step


@contextmanager
def _cut_into(chunks: tuple[int, ...]) -> Iterator[None]:
    before, _cut.chunks = _cut.chunks, chunks
    try:
        yield
    finally:
        _cut.chunks = before


def call(original: Callable[..., Any], layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    """Compute a BatchNormalization. If the batch is cut, normalize each replica's rows by their own statistics."""
    if training and layer.trainable and active_micro_batch() is not None:
        warnings.warn(
            f"{layer.name!r} normalizes each micro-batch by its own statistics (accumulate_steps), so the numbers are not those of "
            "the whole batch. Use a layer that normalizes each example, such as LayerNormalization or GroupNormalization.",
            ReductionWarning,
            stacklevel=2,
        )
    if training and layer.trainable and 0 in inputs.shape and active_replica_context() is not None:
        return _without_rows(original, layer, inputs, mask)
    chunks = _cut.chunks
    if len(chunks) < 2 or not training or not layer.trainable:
        return original(layer, inputs, training=training, mask=mask)
    sizes = _own_sizes(layer, inputs, chunks)
    known = [(variable, variable.value) for variable in layer.variables]

    def on_replica(x: Any, x_mask: Any) -> Any:
        with keras.StatelessScope(state_mapping=known) as scope:
            outputs = original(layer, x, training=True, mask=x_mask)
        return outputs, [scope.get_current_value(variable) for variable in layer.non_trainable_variables]

    # All replicas but the last have the same number of rows. XLA spreads their one vectorized computation over the devices.
    equal = sizes.count(sizes[0])
    rows = equal * sizes[0]
    stacked = jax.tree.map(lambda x: x[:rows].reshape(equal, sizes[0], *x.shape[1:]), (inputs, mask))
    outputs, states = jax.vmap(on_replica)(*stacked)
    outputs, sums = outputs.reshape(rows, *outputs.shape[2:]), [jnp.sum(x, axis=0) for x in states]
    if rows < sum(sizes):
        rest, state = on_replica(*jax.tree.map(lambda x: x[rows:], (inputs, mask)))
        outputs, sums = jnp.concatenate([outputs, rest]), [a + b for a, b in zip(sums, state, strict=True)]
    for variable, total in zip(layer.non_trainable_variables, sums, strict=True):
        variable.assign(total / len(sizes))
    return outputs


def _without_rows(original: Callable[..., Any], layer: Any, inputs: Any, mask: Any) -> Any:
    """Compute nothing on a replica without rows: the statistics of no rows are NaN, and so would be the sum of all gradients."""
    for variable in (layer.moving_mean, layer.moving_variance):  # exchanged with those of the replicas that have rows
        variable.assign(variable.value)
    return original(layer, inputs, training=False, mask=mask)


def _own_sizes(layer: Any, inputs: Any, chunks: tuple[int, ...]) -> list[int]:
    """Return how many rows of `inputs` each replica has. An earlier layer may have made several of each row of the batch."""
    batch, rows = sum(chunks), inputs.shape[0]
    if rows % batch or layer.axis % len(inputs.shape) == 0:
        raise ArgumentError(
            f"use_replica_statistics asks for the statistics of each replica's own rows, but {layer.name!r} gets an input of shape "
            f"{tuple(inputs.shape)} with axis={layer.axis} in a step on {batch} rows. The first axis of its input must hold these "
            "rows, each equally often, and must not be the feature axis. Use the statistics of the global batch for this model."
        )
    return [size * (rows // batch) for size in chunks]
