"""Trains models in double precision, on one device and on many, and prints how far apart losses and weights are.

    python _double_precision.py MODELS OPTIMIZERS WAYS DEVICES   (comma-separated; DEVICES as 4x2: four devices, model axis of 2)

In single precision, a sum in another order differs by 1e-7, and Adam can make a step of any size of it where a gradient is nearly
zero. In double precision, nothing hides behind rounding: what is more than 1e-10 apart is another computation. On JAX, Keras's
normalizations, means and attention compute with 32 bits whatever their dtype, so the layers here are written out.
"""

import os
import sys

os.environ |= {"JAX_ENABLE_X64": "1", "NPROC": "64"}

import replicant

replicant.set_virtual_devices(8)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

from replicant.data import Dataset  # noqa: E402

keras.config.set_floatx("float64")
layers = keras.layers
ROWS, BATCH, CLASSES, WORDS, LENGTH, EPOCHS = 20, 8, 8, 32, 6, 7  # batches of 8, 8 and 4 rows
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
MEAN_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=2),
}


class BatchNorm(layers.Layer):
    """Normalizes by the statistics of the whole batch, in custom loops too."""

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")
        self.offset = self.add_weight(shape=shape[-1:], initializer="zeros")
        self.moving_mean = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False)

    def call(self, x):
        axes = tuple(range(x.ndim - 1))
        count = jnp.full((), x.size // x.shape[-1], x.dtype)
        sums = [jnp.sum(x, axes), jnp.sum(x * x, axes), count]
        context = replicant.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            sums = context.all_reduce("SUM", sums)
        mean, square = sums[0] / sums[2], sums[1] / sums[2]
        self.moving_mean.assign(0.9 * self.moving_mean + 0.1 * jax.lax.stop_gradient(mean))
        return (x - mean) / jnp.sqrt(square - mean**2 + 1e-3) * self.scale + self.offset


class LayerNorm(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, x):
        mean = jnp.mean(x, -1, keepdims=True)
        return (x - mean) / jnp.sqrt(jnp.mean((x - mean) ** 2, -1, keepdims=True) + 1e-3) * self.scale


class Attention(layers.MultiHeadAttention):
    def _compute_attention(self, query, key, value, *_, **__):
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / 2.0
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(seen, scores, -1e30)), value), scores


class Mean(layers.Layer):
    def call(self, x):
        return jnp.mean(x, axis=tuple(range(1, x.ndim - 1)))


def mlp():
    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.Flatten()(layers.Embedding(WORDS, 8)(given))
    return keras.Model(given, layers.Dense(CLASSES)(layers.Dense(32, activation="tanh")(x)))


def cnn():
    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.Reshape((LENGTH, 4, 2))(layers.Embedding(WORDS, 8)(given))
    for filters in (8, 16):
        x = layers.ReLU()(BatchNorm()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)))
    return keras.Model(given, layers.Dense(CLASSES)(Mean()(x)))


def transformer():
    given = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 16)(given)
    for _ in range(4):
        normal = LayerNorm()(x)
        # The bias of a key changes nothing, and Lion would take steps in the direction of the rounding of its gradient.
        x = x + Attention(4, 4, use_bias=False)(normal, normal)
        x = x + layers.Dense(16)(layers.Dense(64, activation="gelu")(LayerNorm()(x)))
    return keras.Model(given, layers.Dense(CLASSES)(Mean()(x)))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


def data():
    draw = np.random.default_rng(0)
    return draw.integers(0, WORDS, (ROWS, LENGTH)).astype("int32"), draw.integers(0, CLASSES, ROWS)


def fit(strategy, model, optimizer):
    return model.fit(*data(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0).history["loss"]


def loop(strategy, model, optimizer):
    scale = optimizer.scale_loss if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else lambda loss: loss

    def replica_step(x, y):
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(LOSS(y, model(x, training=True)), global_batch_size=BATCH)
            scaled = scale(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=batch)))
    losses = []
    for _ in range(EPOCHS):
        losses += [
            float(step(batch))
            for batch in strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(data()).batch(BATCH))
        ]
    return losses


def micro(strategy, model, optimizer):
    """`fit`, on one device with whole batches, and else with micro-batches of an uneven number of rows."""
    if len(strategy.extended.worker_devices) > 1:
        replicant.keras.use_micro_batches(model, 3)
    return fit(strategy, model, optimizer)


WAYS = {"fit": fit, "loop": loop, "micro": micro}


def train(strategy, way, make_model, make_optimizer):
    """Return an array of all losses and one of all variables."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model, optimizer = make_model(), make_optimizer()
        model.compile(optimizer, MEAN_LOSS)
    losses = WAYS[way](strategy, model, optimizer)
    values = model.get_weights()
    assert {value.dtype.name for value in values if value.dtype.kind == "f"} == {"float64"}
    return np.asarray(losses), np.concatenate([np.ravel(value) for value in values])


def main(models, optimizers, ways, sizes):
    for model in models.split(","):
        for name in optimizers.split(","):
            for way in ways.split(","):
                expected = train(replicant.OneDeviceStrategy("cpu:0"), way, MODELS[model], OPTIMIZERS[name])
                for size in sizes.split(","):
                    n, k = map(int, size.split("x"))
                    devices = [f"cpu:{i}" for i in range(n)]
                    strategy = replicant.FullyShardedStrategy(devices, model_parallel_size=k, min_size=8)
                    actual = train(strategy, way, MODELS[model], OPTIMIZERS[name])
                    apart = max(np.abs(mine - wanted).max() for mine, wanted in zip(actual, expected, strict=True))
                    print(model, name, way, size, f"{apart:.1e}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
