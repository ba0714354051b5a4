"""A training program for `replicant launch` whose workers are struck at random: ``_launch_chaos_program.py LOOP FOLDER RESULT``.

LOOP is fit, custom, or without_dropout, which is also a custom loop. Every worker prints "pid NUMBER", "ready SECONDS" before it
makes the strategy, "step SECONDS" after each step, and at its end "compiled NUMBER", the number of programs that were not on disk.
SIGUSR1 makes a worker raise ValueError. The chief writes weights and history to RESULT. CHAOS_SLOW=GENERATION:RANK:SECONDS makes
one worker late.
"""

import collections
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
print("pid", os.getpid(), flush=True)
generation, rank, seconds = os.environ.get("CHAOS_SLOW", "-1:0:0").split(":")
if (generation, rank) == (os.environ["REPLICANT_GENERATION"], os.environ["JAX_PROCESS_ID"]):
    time.sleep(float(seconds))

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

import replicant  # noqa: E402

BATCH_SIZE, NUM_EPOCHS, NUM_ROWS = 8, 3, 76  # 10 steps per epoch, the last one with four rows
SECONDS_PER_STEP = 0.05


def fail(number: int, frame: Any) -> None:
    raise ValueError(f"signal {number}")


def dataset() -> replicant.data.Dataset:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(NUM_ROWS, 6)).astype(np.float32), rng.integers(0, 3, NUM_ROWS)
    return replicant.data.Dataset.from_tensor_slices(rows).shuffle(30, seed=5).batch(BATCH_SIZE)


def create_model(dropout: float = 0.3) -> keras.Model:
    return keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(dropout), keras.layers.Dense(3)])


def aim() -> None:
    print("step", time.time(), flush=True)
    time.sleep(SECONDS_PER_STEP)


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        aim()


def fit(strategy: replicant.Strategy, folder: str) -> tuple[list[Any], Any]:
    with strategy.scope():
        model = create_model()
        model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = [replicant.keras.callbacks.BackupAndRestore(folder, save_freq=2), Slow()]
    history = model.fit(dataset(), epochs=NUM_EPOCHS, callbacks=callbacks, verbose=0)
    return [*model.variables, *model.optimizer.variables], history.history


class Progress:
    """The epoch and the losses, as an object whose state is saved."""

    def __init__(self) -> None:
        self.epoch, self.losses = 0, [[]]

    def state(self) -> Any:
        return [self.epoch, self.losses]

    def restore(self, state: Any) -> None:
        self.epoch, self.losses = state


def without_dropout(strategy: replicant.Strategy, folder: str) -> tuple[list[Any], Any]:
    """Train without dropout, whose masks depend on the number of replicas."""
    return custom(strategy, folder, dropout=0.0)


def custom(strategy: replicant.Strategy, folder: str, dropout: float = 0.3) -> tuple[list[Any], Any]:
    with strategy.scope():
        model, optimizer = create_model(dropout), keras.optimizers.Adam(0.01)
        model.build((None, 6))
        optimizer.build(model.trainable_variables)
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(batch: Any) -> Any:
        rows, labels = batch
        with replicant.GradientTape() as tape:
            predictions = model(rows, training=True)
            loss = replicant.compute_average_loss(loss_object(labels, predictions), global_batch_size=BATCH_SIZE)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None))
    batches, progress = strategy.experimental_distribute_dataset(dataset()), Progress()
    iterator = iter(batches)
    checkpoint = replicant.Checkpoint(model=model, optimizer=optimizer, progress=progress, iterator=iterator)
    with replicant.CheckpointManager(checkpoint, folder, 2) as manager:
        manager.restore_or_initialize()
        while progress.epoch < NUM_EPOCHS:
            for batch in iterator:
                progress.losses[-1].append(float(step(batch)))
                aim()
                if len(progress.losses[-1]) % 2 == 0:
                    manager.save()
            progress.losses.append([])
            progress.epoch += 1
            iterator = checkpoint.iterator = iter(batches)
        iterator.close()
    return [*model.variables, *optimizer.variables], progress.losses


def train(loop: str, folder: str, result: str) -> None:
    strategy = replicant.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    compiled: collections.Counter[str] = collections.Counter()
    jax.monitoring.register_event_listener(lambda event, **_: compiled.update([event.rpartition("/")[2]]))
    variables, history = {"fit": fit, "custom": custom, "without_dropout": without_dropout}[loop](strategy, folder)
    print("compiled", compiled["compile_requests_use_cache"] - compiled["cache_hits"], flush=True)
    if strategy.is_chief:
        weights = [[v.path, np.asarray(v.value).tobytes().hex(), np.asarray(v.value).tolist()] for v in variables]
        Path(result).write_text(json.dumps({"history": history, "weights": weights}))


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, fail)
    print("ready", time.time(), flush=True)
    replicant.run_elastic(lambda: train(*sys.argv[1:]))
