"""A training program whose data and checkpoints are at a store: ``python _store_chaos_program.py LOOP DATA URL RESULT``.

LOOP is fit or custom, DATA is text, tar or parquet. The files are those of URL/DATA/, the checkpoints go to URL/saved, and STORE
names the endpoint. It prints "start" before it restores, then "step" after every step, and writes weights and history to RESULT.
The history of the custom loop holds the numbers of the examples of each step.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import replicant

replicant.set_virtual_devices(2)

import fsspec.config  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from _store_chaos_sizes import NUM_COLUMNS, NUM_EPOCHS  # noqa: E402

from replicant.data import Dataset, ParquetDataset, TarDataset, TextLineDataset  # noqa: E402
from replicant.storage import _read_ahead  # noqa: E402

BATCH_SIZE = 8
_read_ahead.BLOCK = 2000  # bytes, so that there are many requests


def of_line(line: str) -> tuple[Any, Any, Any]:
    number, label, *values = line.split(",")
    return np.int64(int(number)), np.array(values, np.float32), np.int64(int(label))


def of_sample(sample: Any) -> tuple[Any, Any, Any]:
    return np.int64(int(sample["__key__"])), np.frombuffer(sample["x"], np.float32), np.int64(int(sample["y"]))


def of_row(row: Any) -> tuple[Any, Any, Any]:
    return row["number"], row["x"], row["y"]


KINDS = {"text": (TextLineDataset, of_line), "tar": (TarDataset, of_sample), "parquet": (ParquetDataset, of_row)}


def dataset(data: str, url: str) -> Dataset:
    """Batches of numbers, values and labels, in an order of its own in each epoch."""
    read, convert = KINDS[data]
    files = Dataset.list_files(f"{url}/{data}/*", shuffle=False)
    return read(files).map(convert, num_parallel_calls=2).shuffle(30, seed=3).batch(BATCH_SIZE).prefetch(2)


def create_model() -> Any:
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    return keras.Sequential([keras.Input((NUM_COLUMNS,)), *layers, keras.layers.Dense(3)])


class Steps(keras.callbacks.Callback):
    """Says that a step is over."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        print("step", flush=True)


def fit(data: str, url: str) -> tuple[list[Any], Any]:
    with replicant.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = create_model()
        model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = [replicant.keras.callbacks.BackupAndRestore(f"{url}/saved", save_freq=2), Steps()]
    pairs = dataset(data, url).map(lambda number, x, y: (x, y))
    history = model.fit(pairs, epochs=NUM_EPOCHS, callbacks=callbacks, verbose=0)
    return [*model.variables, *model.optimizer.variables], history.history


class Progress:
    """The epoch, and the numbers of the examples and the loss of each step, as an object whose state is saved."""

    def __init__(self) -> None:
        self.epoch, self.steps = 0, []

    def state(self) -> Any:
        return [self.epoch, self.steps]

    def restore(self, state: Any) -> None:
        self.epoch, self.steps = state


def custom(data: str, url: str) -> tuple[list[Any], Any]:
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model, optimizer = create_model(), keras.optimizers.Adam(0.01)
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(batch: Any) -> Any:
        _, x, y = batch
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(loss_object(y, model(x, training=True)), global_batch_size=BATCH_SIZE)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    step = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None))
    batches, progress = strategy.experimental_distribute_dataset(dataset(data, url)), Progress()
    iterator = iter(batches)
    checkpoint = replicant.Checkpoint(model=model, optimizer=optimizer, progress=progress, iterator=iterator)
    with replicant.CheckpointManager(checkpoint, f"{url}/saved", 2) as manager:
        manager.restore_or_initialize()
        while progress.epoch < NUM_EPOCHS:
            for batch in iterator:
                numbers = [int(each) for part in strategy.experimental_local_results(batch[0]) for each in np.asarray(part)]
                progress.steps.append([numbers, float(step(batch))])
                print("step", flush=True)
                if len(progress.steps) % 2 == 0:
                    manager.save(options=replicant.CheckpointOptions(enable_async=True))
            progress.epoch += 1
            iterator.close()
            iterator = checkpoint.iterator = iter(batches)
        iterator.close()
    return [*model.variables, *optimizer.variables], progress.steps


def main(loop: str, data: str, url: str, result: str) -> None:
    fsspec.config.conf["s3"] = {"endpoint_url": os.environ["STORE"], "key": "key", "secret": "secret"}
    keras.utils.set_random_seed(1)
    print("start", flush=True)
    variables, history = {"fit": fit, "custom": custom}[loop](data, url)
    weights = [[v.path, np.asarray(v.numpy()).tobytes().hex()] for v in variables]
    Path(result).write_text(json.dumps({"history": history, "weights": weights}))


if __name__ == "__main__":
    main(*sys.argv[1:])
