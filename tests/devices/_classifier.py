"""Trains a classifier with `fit` and with a custom loop, on so many replicas: the losses, and all variables at the end."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import replicant
from replicant.data import Dataset


def fit_classifier(
    make_model: Callable[[], Any], inputs: np.ndarray, labels: np.ndarray, num_replicas: int, rate: float = 0.5
) -> Any:
    """Train with `fit`: three epochs of batches of four."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    with strategy.scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(inputs, labels, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
    return losses, [np.asarray(v) for v in model.variables]


def loop_classifier(
    make_model: Callable[[], Any], inputs: np.ndarray, labels: np.ndarray, num_replicas: int, rate: float = 0.5
) -> Any:
    """Train with a custom loop: two passes of batches of four."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)])
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.SGD(rate)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(losses(y, model(x, training=True)), global_batch_size=4)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @replicant.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch))

    batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((inputs, labels)).batch(4).repeat(2))
    return [float(step(batch)) for batch in batches], [np.asarray(v) for v in model.variables]
