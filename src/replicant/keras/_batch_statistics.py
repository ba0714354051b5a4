"""BatchNormalization in ``fit``: the statistics of the global batch, or, on request, those of each replica's own rows.

A training step is traced in the global view, so the statistics are by themselves those of the whole batch. Where a model asks for
the replicas' own, each BatchNormalization is computed on every replica's rows by itself, as if there were no others. What the
replicas then make of the moving statistics is averaged over those that have rows, as tf.distribute does.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import keras

from ..errors import ArgumentError, ArgumentTypeError
from ..input.sharding._rebatch import chunk_sizes

_ASKED = "_replicant_replica_statistics"


def use_replica_statistics(model: Any) -> None:
    """Let every BatchNormalization of `model` normalize each replica's rows by their own statistics when ``fit`` trains it.

    This is what tf.distribute does unless a layer is ``synchronized=True``. Without this call ``fit`` uses the statistics of the
    global batch, which do not depend on the number of replicas. A batch of b rows is cut for n replicas in chunks of ceil(b / n)
    rows; the moving statistics become the mean of what the replicas that have rows would make of them. With one replica nothing
    changes, nor in ``evaluate`` and ``predict``, which use the moving statistics.

    Args:
        model: a ``keras.Model``, built or not, compiled or not. It is remembered by this object only: a copy, or a model loaded
            from a file, has to be asked again.

    Raises ArgumentTypeError for anything else. The training step raises ArgumentError for a BatchNormalization whose input does
    not have the rows of the batch along its first axis, or that normalizes along that axis.

    >>> import keras, replicant
    >>> with replicant.MirroredStrategy().scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    ...     model.compile("sgd", "mse")
    >>> replicant.keras.use_replica_statistics(model)
    """
    if not isinstance(model, keras.Model):
        raise ArgumentTypeError(f"use_replica_statistics: model must be a keras.Model; got {type(model).__name__}.")
    model.__dict__[_ASKED] = True  # not an attribute of the layer: Keras would try to track it
    model.train_function = None  # as compile does: it is traced anew


class _Cut(threading.local):
    """How the batch of the step that is being traced is cut; no chunks: not at all."""

    chunks: tuple[int, ...] = ()


_cut = _Cut()


def train_step_of(model: Any, num_replicas: int) -> Callable[..., Any]:
    """The model's ``train_step``, computed with the statistics that the model asks for."""
    step = model.train_step
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
    """BatchNormalization in a step on a batch that is cut: each replica's rows by their own statistics."""
    chunks = _cut.chunks
    if len(chunks) < 2 or not training or not layer.trainable:
        return original(layer, inputs, training=training, mask=mask)
    sizes = _own_sizes(layer, inputs, chunks)
    known = [(variable, variable.value) for variable in layer.variables]

    def on_replica(x: Any, x_mask: Any) -> Any:
        with keras.StatelessScope(state_mapping=known) as scope:
            outputs = original(layer, x, training=True, mask=x_mask)
        return outputs, [scope.get_current_value(variable) for variable in layer.non_trainable_variables]

    # All but the last replica have the same number of rows: one vectorised computation, which XLA spreads over the devices.
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


def _own_sizes(layer: Any, inputs: Any, chunks: tuple[int, ...]) -> list[int]:
    """Rows of `inputs` that belong to each replica: a layer between may have made several of each row of the batch."""
    batch, rows = sum(chunks), inputs.shape[0]
    if rows % batch or layer.axis % len(inputs.shape) == 0:
        raise ArgumentError(
            f"The statistics of each replica's own rows were asked for (use_replica_statistics), but {layer.name!r} gets an input "
            f"of shape {tuple(inputs.shape)} with axis={layer.axis} in a step on {batch} rows: its first axis must be those rows, "
            "each as often, and must not be the axis of the features. Use the statistics of the global batch for this model."
        )
    return [size * (rows // batch) for size in chunks]
