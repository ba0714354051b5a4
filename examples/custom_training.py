"""Train a small convolutional network with a custom training loop, on all devices in lockstep.

    python examples/custom_training.py
    python examples/custom_training.py --data fashion_mnist --epochs 10 --replicas 2 --data-dir DIR

The program trains and tests, saves a checkpoint every second epoch, and restores the last one without a strategy. Then it
goes on with the two other ways to write the loop: an iterator for a fixed number of steps, and a whole epoch inside one
function. If there is only a CPU, ``--replicas`` virtual devices share its cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import keras

import replicant
from _datasets import NAMES, DataError, ImageData, load
from _progress import Progress
from replicant.data import Dataset

CHECKPOINT_DIR = Path("training_checkpoints")
STEPS_PER_EPOCH = 10  # in the variant with an iterator
SEED = 1


class Parts(NamedTuple):
    """What is trained and what is measured. All of it is made in the strategy's scope."""

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    train_accuracy: keras.metrics.Metric
    test_loss: keras.metrics.Metric
    test_accuracy: keras.metrics.Metric


class Steps(NamedTuple):
    """The compiled functions: one training step, one test step, one epoch of training steps."""

    train: Any
    test: Any
    train_epoch: Any


class Input(NamedTuple):
    """The distributed datasets, and the sizes that the progress line needs."""

    train: Any
    test: Any
    num_train_batches: int
    global_batch_size: int


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse_options(argv)
    replicant.set_virtual_devices(options.replicas)  # before anything else asks JAX for its devices
    keras.utils.set_random_seed(SEED)
    try:
        data = load(options.data, options.data_dir)
    except DataError as error:
        print(f"custom_training.py: {error}", file=sys.stderr)
        return 2

    strategy = replicant.MirroredStrategy(replicant.list_devices()[: options.replicas])
    print(f"Number of devices: {strategy.num_replicas_in_sync}")
    inputs = distribute(strategy, data, options.batch_size_per_replica * strategy.num_replicas_in_sync)
    parts = create_parts(strategy)
    steps = build_steps(strategy, parts, inputs.global_batch_size)

    accuracy_before_saving = train_and_test(options.epochs, inputs, parts, steps)
    accuracy_after_restoring = evaluate_restored(data, inputs.global_batch_size)
    print(f"Accuracy when the last checkpoint was saved: {accuracy_before_saving:.4f}")
    print(f"Accuracy after restoring it without a strategy: {accuracy_after_restoring:.4f}")

    train_by_iterator(options.epochs, inputs, parts, steps)
    train_inside_function(options.epochs, inputs, parts, steps)
    return 0


def create_model() -> keras.Model:
    """Build the network. Its weights are made when it first sees images."""
    return keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def create_parts(strategy: replicant.Strategy) -> Parts:
    """Make the model, the optimizer and the metrics. The scope mirrors their variables on every device."""
    with strategy.scope():
        return Parts(
            model=create_model(),
            optimizer=keras.optimizers.Adam(),
            train_accuracy=keras.metrics.SparseCategoricalAccuracy(name="train_accuracy"),
            test_loss=keras.metrics.Mean(name="test_loss"),
            test_accuracy=keras.metrics.SparseCategoricalAccuracy(name="test_accuracy"),
        )


def distribute(strategy: replicant.Strategy, data: ImageData, global_batch_size: int) -> Input:
    """Make global batches. The strategy gives every replica its share of each batch."""
    train = Dataset.from_tensor_slices((data.train_images, data.train_labels))
    train = train.shuffle(len(data.train_labels), seed=SEED).batch(global_batch_size)
    test = Dataset.from_tensor_slices((data.test_images, data.test_labels)).batch(global_batch_size)
    return Input(
        train=strategy.experimental_distribute_dataset(train),
        test=strategy.experimental_distribute_dataset(test),
        num_train_batches=int(train.cardinality()),
        global_batch_size=global_batch_size,
    )


def build_steps(strategy: replicant.Strategy, parts: Parts, global_batch_size: int) -> Steps:
    """Write the step for one replica, then let the strategy run it on all of them."""
    # There is no reduction, because a mean over one replica's share would divide by the wrong number of examples.
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(batch: Any) -> Any:
        images, labels = batch
        with replicant.GradientTape() as tape:
            predictions = parts.model(images, training=True)
            loss = replicant.compute_average_loss(loss_object(labels, predictions), global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, parts.model.trainable_variables)
        parts.optimizer.apply_gradients(zip(gradients, parts.model.trainable_variables, strict=True))
        parts.train_accuracy.update_state(labels, predictions)
        return loss

    def test_step(batch: Any) -> None:
        images, labels = batch
        predictions = parts.model(images, training=False)
        parts.test_loss.update_state(loss_object(labels, predictions))
        parts.test_accuracy.update_state(labels, predictions)

    @replicant.function
    def distributed_train_step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(train_step, args=(batch,)), axis=None)

    @replicant.function
    def distributed_test_step(batch: Any) -> None:
        strategy.run(test_step, args=(batch,))

    @replicant.function
    def distributed_train_epoch(dataset: Any) -> Any:
        total_loss, num_batches = 0.0, 0
        for batch in dataset:
            total_loss += strategy.reduce("SUM", strategy.run(train_step, args=(batch,)), axis=None)
            num_batches += 1
        return total_loss / num_batches

    return Steps(distributed_train_step, distributed_test_step, distributed_train_epoch)


def train_and_test(num_epochs: int, inputs: Input, parts: Parts, steps: Steps) -> float:
    """Train and test ``num_epochs`` times. Returns the test accuracy at the last checkpoint, in percent."""
    checkpoint = replicant.Checkpoint(optimizer=parts.optimizer, model=parts.model)
    accuracy_when_saved = 0.0
    for epoch in range(num_epochs):
        total_loss = 0.0
        with Progress(f"Epoch {epoch + 1}", inputs.num_train_batches, inputs.global_batch_size) as progress:
            for batch in inputs.train:
                loss = steps.train(batch)
                total_loss += loss
                progress.update(loss)
        for batch in inputs.test:
            steps.test(batch)

        test_accuracy = percent(parts.test_accuracy)
        if epoch % 2 == 0:
            checkpoint.save(CHECKPOINT_DIR / "ckpt")
            accuracy_when_saved = test_accuracy
        print(
            f"Epoch {epoch + 1}, Loss: {float(total_loss) / inputs.num_train_batches:.4f}, "
            f"Accuracy: {percent(parts.train_accuracy):.4f}, "
            f"Test Loss: {value(parts.test_loss):.4f}, Test Accuracy: {test_accuracy:.4f}",
            flush=True,
        )
        for metric in (parts.train_accuracy, parts.test_loss, parts.test_accuracy):
            metric.reset_state()
    return accuracy_when_saved


def evaluate_restored(data: ImageData, batch_size: int) -> float:
    """Restore the latest checkpoint into new objects without a strategy, and test the model."""
    model, accuracy = create_model(), keras.metrics.SparseCategoricalAccuracy(name="eval_accuracy")
    checkpoint = replicant.Checkpoint(optimizer=keras.optimizers.Adam(), model=model)
    checkpoint.restore(replicant.latest_checkpoint(CHECKPOINT_DIR))

    @replicant.function
    def eval_step(images: Any, labels: Any) -> None:
        accuracy.update_state(labels, model(images, training=False))

    for images, labels in Dataset.from_tensor_slices((data.test_images, data.test_labels)).batch(batch_size):
        eval_step(images, labels)
    return percent(accuracy)


def train_by_iterator(num_epochs: int, inputs: Input, parts: Parts, steps: Steps) -> None:
    """Train for a fixed number of steps per epoch, wherever the data ends."""
    num_steps = min(STEPS_PER_EPOCH, inputs.num_train_batches)
    print(f"With an iterator, {num_steps} steps per epoch:")
    for epoch in range(num_epochs):
        total_loss = 0.0
        iterator = iter(inputs.train)
        for _ in range(num_steps):
            total_loss += steps.train(next(iterator))
        report(epoch, float(total_loss) / num_steps, parts)


def train_inside_function(num_epochs: int, inputs: Input, parts: Parts, steps: Steps) -> None:
    """Train with the loop over the dataset inside the function."""
    print("With the loop inside the function:")
    for epoch in range(num_epochs):
        report(epoch, float(steps.train_epoch(inputs.train)), parts)


def report(epoch: int, loss: float, parts: Parts) -> None:
    """Print the line of an epoch without a test loop, and reset its accuracy."""
    print(f"Epoch {epoch + 1}, Loss: {loss:.4f}, Accuracy: {percent(parts.train_accuracy):.4f}", flush=True)
    parts.train_accuracy.reset_state()


def value(metric: keras.metrics.Metric) -> float:
    """Read a metric."""
    result: Any = metric.result()
    return float(result)


def percent(metric: keras.metrics.Metric) -> float:
    """Read a metric between 0 and 1, in percent."""
    return 100 * value(metric)


def parse_options(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Custom training with MirroredStrategy.")
    parser.add_argument("--data", choices=NAMES, default="digits", help="the images (default: %(default)s)")
    parser.add_argument(
        "--data-dir", type=Path, help="folder with the four IDX .gz files of mnist or fashion_mnist (default: download)"
    )
    parser.add_argument("--epochs", type=positive_int, default=10, help="number of epochs (default: %(default)s)")
    parser.add_argument("--replicas", type=positive_int, default=2, help="use at most this many devices (default: %(default)s)")
    parser.add_argument(
        "--batch-size-per-replica", type=positive_int, default=64, help="examples per replica (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    if options.data == "digits" and options.data_dir is not None:
        parser.error("--data-dir works only with --data mnist and --data fashion_mnist: the digits come with scikit-learn")
    return options


def positive_int(text: str) -> int:
    """Read a number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
