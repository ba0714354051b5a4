"""Train a small convolutional network with Keras ``fit``, on all devices in lockstep.

    python examples/keras_fit.py
    python examples/keras_fit.py --data mnist --epochs 12 --replicas 4 --data-dir DIR

The program trains with callbacks (TensorBoard, a weights file per epoch, a falling learning rate), goes back to the latest weights,
evaluates and saves the model. Then it loads the model without the strategy and with it, and evaluates it again, which gives the
same numbers. If there is only a CPU, ``--replicas`` virtual devices share its cores.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import keras

import replicant
from _datasets import DataError, ImageData, load
from _options import parse
from replicant.data import Dataset
from replicant.keras.callbacks import TensorBoard

CHECKPOINT_DIR = Path("training_checkpoints")
LOG_DIR = Path("logs")
MODEL_FILE = Path("my_model.keras")
SHUFFLE_BUFFER = 10_000
SEED = 1


class PrintLR(keras.callbacks.Callback):
    """Prints the learning rate after each epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the learning rate, which the schedule's callback has set in the optimizer."""
        model: Any = self.model
        print(f"Learning rate for epoch {epoch + 1} is {float(model.optimizer.learning_rate):g}", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse("Keras fit with MirroredStrategy.", argv, epochs=12, replicas=4, batch_size=64)
    replicant.set_virtual_devices(options.replicas)  # before anything else asks JAX for its devices
    keras.utils.set_random_seed(SEED)
    try:
        data = load(options.data, options.data_dir)
    except DataError as error:
        print(f"keras_fit.py: {error}", file=sys.stderr)
        return 2

    strategy = replicant.MirroredStrategy(replicant.list_devices()[: options.replicas])
    print(f"Number of devices: {strategy.num_replicas_in_sync}")
    train, test = make_datasets(data, options.batch_size_per_replica * strategy.num_replicas_in_sync)

    with strategy.scope():
        model = create_model(data.train_images.shape[1:])
        compile_model(model)

    model.fit(train, epochs=options.epochs, callbacks=make_callbacks(), verbose=2)

    model.load_weights(latest_weights(CHECKPOINT_DIR))
    print_evaluation("As trained", model, test)

    model.save(MODEL_FILE)
    unreplicated = keras.models.load_model(MODEL_FILE)
    compile_model(unreplicated)
    print_evaluation("Loaded without the strategy", unreplicated, test)

    with strategy.scope():
        replicated = keras.models.load_model(MODEL_FILE)
        compile_model(replicated)
        print_evaluation("Loaded with the strategy", replicated, test)
    return 0


def make_datasets(data: ImageData, global_batch_size: int) -> tuple[Dataset, Dataset]:
    """Make global batches. ``fit`` divides each batch among the devices."""
    train = Dataset.from_tensor_slices((data.train_images, data.train_labels)).cache()
    test = Dataset.from_tensor_slices((data.test_images, data.test_labels))
    return train.shuffle(SHUFFLE_BUFFER, seed=SEED).batch(global_batch_size), test.batch(global_batch_size)


def create_model(image_shape: tuple[int, ...]) -> Any:
    """Build the network."""
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def compile_model(model: Any) -> None:
    """Set how the model is trained and measured. ``fit`` itself takes the mean over the global batch."""
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def make_callbacks() -> list[keras.callbacks.Callback]:
    """Watch, keep the weights of every epoch, and lower the learning rate."""
    return [
        TensorBoard(log_dir=str(LOG_DIR)),
        keras.callbacks.ModelCheckpoint(str(CHECKPOINT_DIR / "ckpt_{epoch}.weights.h5"), save_weights_only=True),
        keras.callbacks.LearningRateScheduler(decay),
        PrintLR(),
    ]


def decay(epoch: int) -> float:
    """Learn fast for 3 epochs, slower for 4, and then only a little."""
    if epoch < 3:
        return 1e-3
    return 1e-4 if epoch < 7 else 1e-5


def latest_weights(folder: Path) -> Path:
    """Find the file that was written last."""
    return max(folder.glob("ckpt_*.weights.h5"), key=lambda path: path.stat().st_mtime_ns)


def print_evaluation(title: str, model: Any, test: Dataset) -> None:
    """Print the test loss and accuracy."""
    result = model.evaluate(test, verbose=0, return_dict=True)
    print(f"{title}: Eval loss: {result['loss']:.4f}, Eval accuracy: {100 * result['accuracy']:.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
