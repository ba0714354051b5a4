"""Makes the loss of a label that is out of range NaN instead of 0.

Keras on JAX turns such a label into a row of zeros: its cross-entropy is 0.0, and the model silently learns nothing from the
example. TensorFlow raises on CPU and gives NaN on GPUs. A compiled program cannot raise, so under a strategy the loss is NaN. The
logs show it, and the TerminateOnNaN callback stops training. An example that does not count, because of its weight, a mask or
`ignore_class`, may have any label.
"""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import keras

from .. import _internals
from ..state._owner import strategy_of

_SPARSE = keras.losses.sparse_categorical_crossentropy


class _Inside(threading.local):
    depth = 0


_inside = _Inside()


def compute_loss(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a model's loss, and note that it happens for a strategy: ``fit`` may be called outside the scope."""
    if strategy_of(model) is None:
        return original(model, *args, **kwargs)
    _inside.depth += 1
    try:
        return original(model, *args, **kwargs)
    finally:
        _inside.depth -= 1


def in_step_of_strategy() -> bool:
    """Return whether the loss of a model that belongs to a strategy is being computed."""
    return _inside.depth > 0


def marked(loss: Any, result: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Return the result of a loss, with NaN where a label is out of range."""
    if getattr(loss, "fn", None) is not _SPARSE or not hasattr(y_pred, "shape") or not hasattr(y_true, "shape"):
        return result
    options = loss._fn_kwargs
    axis, ignored = options.get("axis", -1), options.get("ignore_class")
    labels, num_classes = jnp.asarray(y_true), y_pred.shape[axis]
    if labels.ndim == len(y_pred.shape) and labels.shape[axis] == 1:
        labels = jnp.squeeze(labels, axis)
    wrong = (labels < 0) | (labels >= num_classes)
    if ignored is not None:
        wrong &= labels != ignored
    for counted in (sample_weight, _internals.mask_of(y_pred)):
        if counted is not None:
            wrong &= _aligned(jnp.asarray(counted), wrong) != 0
    nan = jnp.where(wrong, jnp.nan, 0.0).astype(result.dtype)
    if nan.shape != result.shape:
        nan = jnp.sum(nan)  # of the dtype of the loss, so that devices exchange both at once
    # Adding NaN keeps Keras's gradient: the model learns nothing from the example, and the weights stay finite.
    return result + jax.lax.stop_gradient(nan)


def _aligned(weights: Any, labels: Any) -> Any:
    """Reshape weights so that they broadcast to the labels, as Keras does."""
    if weights.ndim == labels.ndim + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    return weights.reshape(weights.shape + (1,) * (labels.ndim - weights.ndim))
