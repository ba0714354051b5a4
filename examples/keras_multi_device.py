"""Train a multilayer perceptron on several devices with Keras, and go on where an earlier run of the program stopped.

    python examples/keras_multi_device.py
    python examples/keras_multi_device.py --data mnist --replicas 2 --data-dir DIR

The program trains and validates a first model for ``--epochs`` epochs, and tests it. Then it trains twice for one epoch, and saves
the whole model after each. The second time, and whenever you start the program again in the same folder, it goes on with the latest
checkpoint. If there is only a CPU, ``--replicas`` virtual devices share its cores.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import keras

import replicant
from _datasets import DataError, ImageData, load
from _options import parse
from replicant.data import Dataset

CHECKPOINT_DIR = Path("ckpt")
SEED = 1


class Datasets(NamedTuple):
    """The datasets for training, validation and testing, in global batches."""

    train: Dataset
    validation: Dataset
    test: Dataset


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse("Keras on several devices.", argv, epochs=2, replicas=2, batch_size=32)
    replicant.set_virtual_devices(options.replicas)  # before anything else asks JAX for its devices
    keras.utils.set_random_seed(SEED)
    try:
        data = load(options.data, options.data_dir)
    except DataError as error:
        print(f"keras_multi_device.py: {error}", file=sys.stderr)
        return 2

    strategy = replicant.MirroredStrategy(replicant.list_devices()[: options.replicas])
    print(f"Number of devices: {strategy.num_replicas_in_sync}")
    datasets = make_datasets(data, options.batch_size_per_replica * strategy.num_replicas_in_sync)
    num_pixels = data.train_images[0].size

    with strategy.scope():
        model = create_compiled_model(num_pixels)
    model.fit(datasets.train, epochs=options.epochs, validation_data=datasets.validation, verbose=2)
    result = model.evaluate(datasets.test, verbose=0, return_dict=True)
    print(f"Test loss: {result['loss']:.4f}, Test accuracy: {100 * result['sparse_categorical_accuracy']:.2f}", flush=True)

    for _ in range(2):
        run_training(strategy, datasets, num_pixels)
    return 0


def create_compiled_model(num_pixels: int) -> Any:
    """Build two layers of 256 units, and set how they are trained."""
    inputs = keras.Input((num_pixels,))
    x = keras.layers.Dense(256, activation="relu")(inputs)
    x = keras.layers.Dense(256, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(10)(x))
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def make_datasets(data: ImageData, global_batch_size: int) -> Datasets:
    """Keep a sixth of the training images for validation: 10,000 of MNIST's 60,000.

    The batches are read once, kept in memory (``cache``), and prepared while the devices compute (``prefetch``).
    """

    def batches(images: Any, labels: Any) -> Dataset:
        rows = images.reshape(len(images), -1), labels
        return Dataset.from_tensor_slices(rows).batch(global_batch_size).cache().prefetch(2)

    num_validation = len(data.train_labels) // 6
    return Datasets(
        train=batches(data.train_images[:-num_validation], data.train_labels[:-num_validation]),
        validation=batches(data.train_images[-num_validation:], data.train_labels[-num_validation:]),
        test=batches(data.test_images, data.test_labels),
    )


def run_training(strategy: replicant.Strategy, datasets: Datasets, num_pixels: int) -> None:
    """Train for one more epoch than the latest checkpoint has, and save the model."""
    with strategy.scope():
        model, epochs_done = make_or_restore_model(num_pixels)
    model.fit(
        datasets.train,
        initial_epoch=epochs_done,
        epochs=epochs_done + 1,
        validation_data=datasets.validation,
        callbacks=[keras.callbacks.ModelCheckpoint(str(CHECKPOINT_DIR / "ckpt-{epoch}.keras"), save_freq="epoch")],
        verbose=2,
    )


def make_or_restore_model(num_pixels: int) -> tuple[Any, int]:
    """Load the latest checkpoint, or make a new model if there is none. Returns the model and the number of its epochs."""
    checkpoints = {int(path.stem.removeprefix("ckpt-")): path for path in CHECKPOINT_DIR.glob("ckpt-*.keras")}
    if not checkpoints:
        print("Creating a new model", flush=True)
        return create_compiled_model(num_pixels), 0
    epochs_done = max(checkpoints)
    print(f"Restoring from {checkpoints[epochs_done]}", flush=True)
    return keras.models.load_model(checkpoints[epochs_done]), epochs_done


if __name__ == "__main__":
    sys.exit(main())
