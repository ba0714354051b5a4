"""One small training program for any number of replicas, which every test of exactness compares."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset


@dataclasses.dataclass
class Run:
    """The results of a training run."""

    losses: np.ndarray
    weights: list[np.ndarray]
    accuracy: float
    model: Any
    optimizer: Any
    num_compiled: int


def default_model() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(3)])


@pytest.fixture(scope="session")
def train() -> Callable[..., Run]:
    """``train(num_replicas, make_optimizer, ...)`` returns a Run. With 0 replicas, there is no strategy."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(64, 6)).astype(np.float32), rng.integers(0, 3, 64)

    def run(
        num_replicas: int,
        make_optimizer: Callable[[], Any],
        *,
        make_model: Callable[[], keras.Model] = default_model,
        num_examples: int = 21,
        global_batch: int = 8,
        epochs: int = 2,
        seed: int = 1,
    ) -> Run:
        keras.utils.set_random_seed(seed)
        strategy = (
            replicant.MirroredStrategy([f"cpu:{i}" for i in range(num_replicas)]) if num_replicas else replicant.get_strategy()
        )
        with strategy.scope():
            model, optimizer = make_model(), make_optimizer()
            loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
            accuracy = keras.metrics.SparseCategoricalAccuracy()

        def train_step(inputs: Any) -> Any:
            x, y = inputs
            with replicant.GradientTape() as tape:
                predictions = model(x, training=True)
                loss = replicant.compute_average_loss(loss_object(y, predictions), global_batch_size=global_batch)
                if model.losses:
                    loss += replicant.scale_regularization_loss(sum(model.losses))
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(y, predictions)
            return loss

        @replicant.function
        def step(inputs: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(train_step, args=(inputs,)), axis=None)

        dataset = Dataset.from_tensor_slices((images[:num_examples], labels[:num_examples])).batch(global_batch)
        batches = strategy.experimental_distribute_dataset(dataset)
        losses = [float(step(batch)) for _ in range(epochs) for batch in batches]
        return Run(np.array(losses), model.get_weights(), float(accuracy.result()), model, optimizer, step.num_compiled)

    return run
