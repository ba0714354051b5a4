"""A training program that can be killed at any moment: ``python _chaos_program.py LOOP DATA FOLDER RESULT``.

LOOP is fit or custom, and DATA is own, grain or tf. The program prints "training", then "step" after every step, and writes weights
and history to RESULT. With SLICES=n, variables lie in slices on n devices of this process, instead of mirrored on two; with
SLICES=all on those of all workers, of which each has two.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import replicant

SLICES = os.environ.get("SLICES", "")
replicant.set_virtual_devices(int(SLICES) if SLICES.isdecimal() else 2)
if SLICES == "all":
    STRATEGY = replicant.FullyShardedStrategy(min_size=8)

import keras  # noqa: E402
import numpy as np  # noqa: E402

BATCH_SIZE, NUM_EPOCHS, NUM_ROWS = 8, 4, 76  # 10 steps per epoch, the last one with four rows
SECONDS_PER_STEP = 0.02
ASYNC = replicant.CheckpointOptions(enable_async=True)


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(NUM_ROWS, 6, 6, 1)).astype(np.float32), rng.integers(0, 3, NUM_ROWS)


def dataset(data: str) -> Any:
    images, labels = rows()
    if data == "own":
        return replicant.data.Dataset.from_tensor_slices((images, labels)).shuffle(30).batch(BATCH_SIZE)
    if data == "grain":
        import grain

        source = grain.MapDataset.source([(image, np.int64(label)) for image, label in zip(images, labels, strict=True)])
        return source.shuffle(seed=3).batch(BATCH_SIZE).to_iter_dataset()
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(30, seed=3).batch(BATCH_SIZE)


def create_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )


def aim() -> None:
    """Report the end of a step, and wait a moment."""
    print("step", flush=True)
    time.sleep(SECONDS_PER_STEP)


def create_optimizer() -> Any:
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9))


class Slow(keras.callbacks.Callback):
    """Slows the steps down, so that the program can be killed at any of them."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        aim()


def fit(strategy: replicant.Strategy, data: str, folder: str) -> tuple[list[Any], Any]:
    with strategy.scope():
        model = create_model()
        model.compile(create_optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    callbacks = [
        replicant.keras.callbacks.BackupAndRestore(folder, save_freq=2),
        keras.callbacks.EarlyStopping("loss", patience=3, restore_best_weights=True),
        Slow(),
    ]
    images, labels = rows()
    validation = (images[:20], labels[:20])
    print("training", flush=True)
    history = model.fit(dataset(data), epochs=NUM_EPOCHS, validation_data=validation, callbacks=callbacks, verbose=0)
    return [*model.variables, *model.optimizer.variables], history.history


class Progress:
    """The epoch and the losses, as an object whose state is saved."""

    def __init__(self) -> None:
        self.epoch, self.losses = 0, [[]]

    def state(self) -> Any:
        return [self.epoch, self.losses]

    def restore(self, state: Any) -> None:
        self.epoch, self.losses = state


def custom(strategy: replicant.Strategy, data: str, folder: str) -> tuple[list[Any], Any]:
    with strategy.scope():
        model, optimizer = create_model(), create_optimizer()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(batch: Any) -> Any:
        images, labels = batch
        with replicant.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = replicant.compute_average_loss(loss_object(labels, predictions), global_batch_size=BATCH_SIZE)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, predictions)
        return loss

    step = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None))
    batches, progress = strategy.experimental_distribute_dataset(dataset(data)), Progress()
    iterator = iter(batches)
    checkpoint = replicant.Checkpoint(model=model, optimizer=optimizer, accuracy=accuracy, progress=progress, iterator=iterator)
    with replicant.CheckpointManager(checkpoint, folder, 2) as manager:
        manager.restore_or_initialize()
        print("training", flush=True)
        while progress.epoch < NUM_EPOCHS:
            for batch in iterator:
                progress.losses[-1].append(float(step(batch)))
                aim()
                if len(progress.losses[-1]) % 2 == 0:
                    manager.save(options=ASYNC)
            progress.losses[-1].append(float(accuracy.result()))
            progress.losses.append([])
            progress.epoch += 1
            accuracy.reset_state()
            iterator = checkpoint.iterator = iter(batches)
        iterator.close()
    return [*model.variables, *optimizer.variables], progress.losses


def main(loop: str, data: str, folder: str, result: str) -> None:
    keras.utils.set_random_seed(1)
    variables, history = {"fit": fit, "custom": custom}[loop](strategy(), data, folder)
    weights = [[v.path, np.asarray(v.numpy()).tobytes().hex()] for v in variables]
    if os.environ.get("JAX_PROCESS_ID", "0") == "0":
        Path(result).write_text(json.dumps({"history": history, "weights": weights}))


def strategy() -> replicant.Strategy:
    if SLICES == "all":
        return STRATEGY
    if SLICES:
        return replicant.FullyShardedStrategy([f"cpu:{i}" for i in range(int(SLICES))], min_size=8)
    return replicant.MirroredStrategy(["cpu:0", "cpu:1"])


if __name__ == "__main__":
    main(*sys.argv[1:])
