"""What the tests of variables in slices train: the same data with the same optimizers, in a custom loop."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import replicant

ROWS, FEATURES, CLASSES, BATCH = 20, 6, 4, 8
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
MEAN_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw with decay": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "sgd with momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "moving average": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "clipped values": lambda: keras.optimizers.Adam(0.01, clipvalue=0.01),
    "clipped norm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.01),
    "global norm": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05),
    "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2),
    "all together": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.AdamW(0.01, global_clipnorm=0.05, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=3)
    ),
    # These look at whole tensors.
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "scaled adafactor": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adafactor(0.01)),
}


def data(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(rows, FEATURES)).astype("float32"), draw.integers(0, CLASSES, rows)


def step_of(model: keras.Model, optimizer: Any) -> Callable[[Any], Any]:
    """A step of a custom loop."""

    def step(batch: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(LOSS(batch[1], model(batch[0], training=True)), global_batch_size=BATCH)
            scaled = optimizer.scale_loss(loss) if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else loss
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return step


def batches(strategy: replicant.Strategy) -> Any:
    """Batches of 8, 8 and 4 rows: on 3 replicas every step is ragged, on 8 one."""
    return strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(data()).batch(BATCH))


def assert_equal(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-5)
    for mine, wanted in zip(actual[1].get_weights(), expected[1].get_weights(), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)


def bytes_per_device(variables: Any) -> list[int]:
    held: Counter[int] = Counter()
    for variable in variables:
        for shard in variable._value.addressable_shards:
            held[shard.device.id] += shard.data.nbytes
    return [held[device] for device in sorted(held)]
