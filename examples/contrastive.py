"""SimCLR (Chen et al. 2020): each image is compared with the images of the whole batch, on whatever device these are.

    python examples/contrastive.py
    python examples/contrastive.py --replicas 4

Every replica gathers the embeddings of all replicas, and gradients go back through that. So the number of replicas does not change
the numbers, even in the last batch of an epoch, which does not divide evenly.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import jax
import jax.numpy as jnp
import keras
import numpy as np

import replicant

BATCH_SIZE, TEMPERATURE = 16, 0.2


def two_views(num_images: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers of random images of 8 x 8 pixels, and two noisy, shifted views of each."""
    random = np.random.default_rng(0)
    images = np.repeat(np.repeat(random.normal(size=(num_images, 4, 4, 1)), 2, axis=1), 2, axis=2)

    def view() -> np.ndarray:
        shifted = np.stack([np.roll(image, random.integers(-1, 2, size=2), axis=(0, 1)) for image in images])
        return (shifted + random.normal(scale=0.2, size=images.shape)).astype(np.float32)

    return np.arange(num_images, dtype=np.int32), view(), view()


def losses_of(numbers: Any, first: Any, second: Any) -> Any:
    """Return the loss of each image of this replica: its two views should be more alike than any other two views of the batch."""
    context: Any = replicant.get_replica_context()
    all_numbers, all_first, all_second = context.all_gather((numbers, first, second), axis=0)
    same = numbers[:, None] == all_numbers

    def one_way(own: Any, all_own: Any, all_other: Any) -> Any:
        alike = own @ all_other.T / TEMPERATURE
        others = jnp.where(same, -jnp.inf, own @ all_own.T / TEMPERATURE)  # no view is compared with itself
        return jax.nn.logsumexp(jnp.concatenate([alike, others], axis=1), axis=1) - jnp.where(same, alike, 0).sum(axis=1)

    return (one_way(first, all_first, all_second) + one_way(second, all_second, all_first)) / 2


def train(replicas: int, *, epochs: int = 4, num_images: int = 37) -> list[float]:
    """Train an encoder on this many replicas, and return the mean loss of each epoch."""
    keras.utils.set_random_seed(1)
    strategy = replicant.MirroredStrategy(jax.devices()[:replicas])
    with strategy.scope():
        layers = keras.layers
        encoder: Any = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Conv2D(16, 3, activation="relu"), layers.Flatten(), layers.Dense(16)]
        )
        optimizer = keras.optimizers.Adam(0.01)

    def step(numbers: Any, first: Any, second: Any) -> Any:
        with replicant.GradientTape() as tape:
            embedded = [keras.ops.normalize(encoder(view, training=True)) for view in (first, second)]
            losses = losses_of(numbers, *embedded)
            loss = replicant.compute_average_loss(losses, global_batch_size=BATCH_SIZE)
        optimizer.apply_gradients(zip(tape.gradient(loss, encoder.trainable_variables), encoder.trainable_variables, strict=True))
        return losses.sum()

    dataset = replicant.data.Dataset.from_tensor_slices(two_views(num_images)).batch(BATCH_SIZE)
    found = []
    for _ in range(epochs):
        batches = strategy.experimental_distribute_dataset(dataset)
        found.append(sum(float(strategy.reduce("SUM", strategy.run(step, args=batch))) for batch in batches) / num_images)
    return found


def main() -> None:
    """Train, and print the loss of each epoch."""
    parser = argparse.ArgumentParser(description="SimCLR on random images.")
    parser.add_argument("--replicas", type=int, default=2)
    options = parser.parse_args()
    replicant.set_virtual_devices(options.replicas)
    for epoch, loss in enumerate(train(options.replicas), start=1):
        print(f"Epoch {epoch}: loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
