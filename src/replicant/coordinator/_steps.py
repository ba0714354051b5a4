"""What workers do in one step of ``fit`` or ``evaluate``."""

from collections.abc import Callable
from typing import Any

import keras

from .._function import function
from .._strategy import Strategy
from .._tape import GradientTape
from .._variables import ref_of
from ..errors import ArgumentError
from ._sums import summed


def batch_of(batch: Any) -> tuple[Any, ...]:
    """A batch as (x, y, sample weights) of arrays."""
    return keras.utils.unpack_x_y_sample_weight(batch if isinstance(batch, tuple | list) else (batch,))


def build(model: Any, strategy: Strategy, batch: Any, what: str) -> None:
    """Make every variable here, in the scope: workers cannot."""
    if not model.compiled or model.optimizer is None:
        raise ArgumentError(
            f"{what}: the model has not been compiled. Call model.compile(optimizer, loss, ...) in strategy.scope()."
        )
    with strategy.scope():
        model._symbolic_build(data_batch=batch_of(batch))
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)


def step_of(model: Any, kind: str, make: Callable[[Any], Any]) -> Any:
    """A step of this model, made anew only when the model has been compiled anew."""
    compiled = (model.optimizer, model._compile_loss, model._compile_metrics)
    known = model.__dict__.setdefault("_replicant_ps_step", {}).get(kind)
    if known is None or any(one is not other for one, other in zip(known[0], compiled, strict=True)):
        known = model.__dict__["_replicant_ps_step"][kind] = (compiled, make(model))
    return known[1]


def train_step(model: Any, functions_per_update: int) -> Callable[[Any], None]:
    """Train on an iterator's next batch."""

    @function
    def train(x: Any, y: Any, weights: Any) -> None:
        with GradientTape() as tape:
            predictions = model(x, training=True)
            loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights, training=True)
            share = loss / functions_per_update  # the mean over the global batch is the sum of these
        gradients = tape.gradient(share, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        _add_to_metrics(model, loss, predictions, x, y, weights)

    def step(iterator: Any) -> None:
        train(*batch_of(next(iterator)))

    return step


def test_step(model: Any) -> Callable[[Any], None]:
    """Evaluate one batch."""

    @function
    def test(x: Any, y: Any, weights: Any) -> None:
        predictions = model(x, training=False)
        loss = model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=weights, training=False)
        _add_to_metrics(model, loss, predictions, x, y, weights)

    def step(batch: Any) -> None:
        test(*batch_of(batch))

    return step


def _add_to_metrics(model: Any, loss: Any, predictions: Any, x: Any, y: Any, weights: Any) -> None:  # noqa: PLR0917 - a batch
    with summed([ref_of(variable) for variable in model.metrics_variables]):  # type: ignore[misc]  # all on servers
        rows = next(value.shape[0] for value in keras.tree.flatten(x) if value is not None)
        model._loss_tracker.update_state(loss, sample_weight=rows)
        model.compute_metrics(x, y, predictions, weights)
