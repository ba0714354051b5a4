"""LoRA: frozen weights in slices, and optimizer state for the adapters alone."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import replicant
from replicant.data import Dataset

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
TWO = ["cpu:0", "cpu:1"]
ONE: Callable[[], Any] = lambda: replicant.OneDeviceStrategy("cpu:0")  # noqa: E731
STRATEGIES: dict[str, Callable[[], Any]] = {
    "mirrored": lambda: replicant.MirroredStrategy(TWO),
    "fully sharded": lambda: replicant.FullyShardedStrategy(TWO, min_size=64),
}


def train(strategy: Any, how: str) -> Any:
    keras.utils.set_random_seed(3)
    x, y = np.random.default_rng(0).integers(0, 32, (20, 6)), np.arange(20) % 4
    with strategy.scope():
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((6,), dtype="int32"),
                layers.Embedding(32, 16),
                layers.Flatten(),
                layers.Dense(16, activation="tanh"),
                layers.Dense(4),
            ]
        )
        model.layers[0].enable_lora(2)
        model.layers[2].enable_lora(4)
        optimizer = keras.optimizers.Adam(0.01)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if how == "fit":
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose="0")
        return model, optimizer

    def step(batch: Any) -> None:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(LOSS(batch[1], model(batch[0], training=True)), global_batch_size=8)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))

    for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices((x, y)).batch(8).repeat(2)):
        strategy.run(step, args=(batch,))
    return model, optimizer


@pytest.mark.cases("loop-fully sharded")
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("how", ["fit", "loop"])
@pytest.mark.long
def test_adapters_train_and_frozen_weights_stay(how: str, name: str) -> None:
    model, optimizer = train(STRATEGIES[name](), how)
    alone, _ = train(ONE(), how)
    for mine, wanted in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)
    frozen = [model.layers[0]._embeddings, model.layers[2]._kernel]
    assert [tuple(v.shape) for v in frozen] == [(32, 16), (96, 16)]
    assert [v._value.sharding.is_fully_replicated for v in frozen] == [name == "mirrored"] * 2
    slots = sum(int(np.prod(v.shape)) for v in optimizer.variables)
    # Two moments of the adapters, of the biases and of the last kernel; the number of steps and the learning rate.
    assert slots == 2 * ((32 + 16) * 2 + (96 + 16) * 4 + 16 + 16 * 4 + 4) + 2
