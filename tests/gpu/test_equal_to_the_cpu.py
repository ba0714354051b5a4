"""Training on a GPU gives the numbers of the CPU: ``fit``, ``evaluate``, ``predict`` and loops, with a smaller last batch."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import replicant
from replicant.data import Dataset

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("exact_products")]

RNG = np.random.default_rng(0)
ROWS, BATCH = 22, 8
IMAGES = RNG.normal(size=(ROWS, 8, 8, 3)).astype(np.float32)
TOKENS = RNG.integers(1, 20, (ROWS, 12)).astype(np.int32)
PADDED = TOKENS * (np.arange(12) < RNG.integers(3, 13, ROWS)[:, None])
LABELS = RNG.integers(0, 3, ROWS)


def mlp() -> keras.Model:
    flat = [layers.Flatten(), layers.Dense(16, "relu"), layers.Dropout(0.3), layers.Dense(3)]
    return keras.Sequential([keras.Input(IMAGES.shape[1:]), *flat])


def cnn() -> keras.Model:
    x = keras.Input(IMAGES.shape[1:])
    y = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, use_bias=False)(x))))
    y = layers.DepthwiseConv2D(3, padding="same")(layers.Conv2DTranspose(4, 3, strides=2, padding="same")(y))
    return keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling2D()(layers.AveragePooling2D(2)(y))))


def lstm() -> keras.Model:
    return keras.Sequential([keras.Input((12,), dtype="int32"), layers.Embedding(20, 8), layers.LSTM(8), layers.Dense(3)])


def masked_lstm() -> keras.Model:
    embedding = layers.Embedding(20, 8, mask_zero=True)
    return keras.Sequential([keras.Input((12,), dtype="int32"), embedding, layers.Bidirectional(layers.LSTM(8)), layers.Dense(3)])


def gru() -> keras.Model:
    return keras.Sequential([keras.Input((12,), dtype="int32"), layers.Embedding(20, 8), layers.GRU(8), layers.Dense(3)])


def attention() -> keras.Model:
    tokens = keras.Input((12,), dtype="int32")
    x = layers.LayerNormalization()(layers.Embedding(20, 16)(tokens))
    x = x + layers.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True)
    return keras.Model(tokens, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


CASES: dict[str, tuple[Callable[[], keras.Model], np.ndarray]] = {
    "mlp": (mlp, IMAGES),
    "cnn": (cnn, IMAGES),
    "lstm": (lstm, TOKENS),
    "masked lstm": (masked_lstm, PADDED),
    "gru": (gru, TOKENS),
    "attention": (attention, TOKENS),
}


def xentropy(reduction: Any = "sum_over_batch_size") -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def fitted(device: str, name: str) -> list[np.ndarray]:
    make_model, x = CASES[name]
    keras.utils.set_random_seed(3)
    with replicant.MirroredStrategy([device]).scope():
        model = make_model()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), xentropy(), metrics=["accuracy"])
    history = model.fit(x, LABELS, batch_size=BATCH, epochs=3, verbose=0).history
    told = model.evaluate(x, LABELS, batch_size=BATCH, verbose=0)
    return [np.array([*history["loss"], *history["accuracy"], *told]), model.predict(x, verbose=0), *model.get_weights()]


def looped(device: str, name: str) -> list[np.ndarray]:
    make_model, x = CASES[name]
    keras.utils.set_random_seed(3)
    strategy = replicant.MirroredStrategy([device])
    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.SGD(0.1, momentum=0.9)
        accuracy, loss_object = keras.metrics.SparseCategoricalAccuracy(), xentropy(None)

    def train_step(inputs: Any, labels: Any) -> Any:
        with replicant.GradientTape() as tape:
            logits = model(inputs, training=True)
            loss = replicant.compute_average_loss(loss_object(labels, logits), global_batch_size=BATCH)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        accuracy.update_state(labels, logits)
        return loss

    @replicant.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(train_step, args=batch))

    dataset = Dataset.from_tensor_slices((x, LABELS)).shuffle(ROWS, seed=1).batch(BATCH).repeat(3)
    losses = [float(step(batch)) for batch in strategy.experimental_distribute_dataset(dataset)]
    return [np.array(losses), np.array(accuracy.result()), *model.get_weights()]


@pytest.mark.parametrize("train", [fitted, looped])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_the_cpu(gpu: Any, train: Callable[[str, str], list[np.ndarray]], name: str) -> None:
    expected, found = train("cpu:0", name), train(f"{gpu.platform}:0", name)
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["cnn", "attention"])
@pytest.mark.parametrize("train", [fitted, looped])
def test_bfloat16_is_near_float32(gpu: Any, train: Callable[[str, str], list[np.ndarray]], name: str) -> None:
    """Attention in bfloat16 is cuDNN's."""
    expected = train("cpu:0", name)
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        found = train(f"{gpu.platform}:0", name)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    np.testing.assert_allclose(found[0][:3], expected[0][:3], atol=0.03)  # losses near 1.1


def test_micro_batches_and_several_steps_per_execution(gpu: Any) -> None:
    def trained(device: str, **options: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        with replicant.MirroredStrategy([device]).scope():
            model = mlp()
            model.compile(keras.optimizers.SGD(0.1), xentropy(), **options)
        return [np.array(model.fit(IMAGES, LABELS, batch_size=BATCH, epochs=2, verbose=0).history["loss"]), *model.get_weights()]

    here = f"{gpu.platform}:0"
    for found in (trained(here), trained(here, steps_per_execution=2)):
        for a, b in zip(trained("cpu:0"), found, strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-5)
