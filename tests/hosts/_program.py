"""One worker, which trains a small model and writes what came of it to FOLDER: ``_program.py CASE STRATEGY``.

A case is "fit", "loop", "saves" (a loop that saves a checkpoint after every second step, and goes on from the last one), or
"elastic" (fit with backups, for `replicant launch --elastic`). When the training comes to the MOMENT
("step" or "checkpoint", both in its middle), the worker says so by a file and goes on once the bench has made the file "go".
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import replicant

CASE, STRATEGY = sys.argv[1:]
FOLDER, MOMENT, RANK = Path(os.environ["FOLDER"]), os.environ.get("MOMENT"), os.environ.get("JAX_PROCESS_ID", "0")
NUM_ROWS, BATCH, EPOCHS = 40, 12, 3  # the last of 4 batches has 4 rows
MIDDLE = 5  # steps
WAIT_SECONDS = 120.0


def come_to(moment: str, step: int) -> None:
    """Wait for the bench, if this is the moment for which it waits."""
    if moment == MOMENT and step == MIDDLE:
        (FOLDER / f"at-{RANK}").touch()
        deadline = time.monotonic() + WAIT_SECONDS
        while not (FOLDER / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


if STRATEGY == "none" or CASE == "elastic":
    strategy: Any = replicant.get_strategy()
elif STRATEGY == "FullyShardedStrategy":
    strategy = replicant.FullyShardedStrategy(min_size=8)
else:
    strategy = getattr(replicant, STRATEGY)()

import keras  # noqa: E402
import numpy as np  # noqa: E402

from replicant.data import Dataset  # noqa: E402


def rows() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(NUM_ROWS, 6)).astype("float32"), draw.integers(0, 3, NUM_ROWS)


def make_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class Moments(keras.callbacks.Callback):
    def on_train_begin(self, logs: Any = None) -> None:
        self.steps = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        come_to("step", self.steps)
        self.steps += 1


def fit(*callbacks: Any) -> dict[str, Any]:
    with strategy.scope():
        model = make_model()
    history = model.fit(*rows(), batch_size=BATCH, epochs=EPOCHS, shuffle=True, verbose=0, callbacks=[*callbacks, Moments()])
    return {"losses": history.history["loss"], "weights": [weight.tolist() for weight in model.get_weights()]}


class Progress:
    """How far the training is, as an object whose state is saved."""

    def __init__(self) -> None:
        self.epoch, self.losses = 0, list[float]()

    def state(self) -> Any:
        return [self.epoch, self.losses]

    def restore(self, state: Any) -> None:
        self.epoch, self.losses = state


def make_step(model: keras.Model) -> Any:
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(loss_of(y, model(x, training=True)), global_batch_size=BATCH)
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @replicant.function
    def train_step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch))

    return train_step


def loop(*, saves: bool = False) -> dict[str, Any]:
    """Train in a loop, from the last checkpoint if there is one."""
    with strategy.scope():
        model = make_model()
    train_step, progress = make_step(model), Progress()
    batches = strategy.experimental_distribute_dataset(Dataset.from_tensor_slices(rows()).shuffle(NUM_ROWS, seed=3).batch(BATCH))
    checkpoint = replicant.Checkpoint(model=model, optimizer=model.optimizer, progress=progress, iterator=iter(batches))
    manager = replicant.CheckpointManager(checkpoint, FOLDER / "checkpoints", max_to_keep=2)
    if saves:
        manager.restore_or_initialize()
    while progress.epoch < EPOCHS:
        for batch in checkpoint.iterator:
            come_to("step", len(progress.losses))
            progress.losses.append(float(train_step(batch)))
            if saves and len(progress.losses) % 2:
                come_to("checkpoint", len(progress.losses))
                manager.save()
        progress.epoch += 1
        checkpoint.iterator = iter(batches)
    return {"losses": progress.losses, "weights": [weight.tolist() for weight in model.get_weights()]}


def elastic() -> dict[str, Any]:
    """Train with fit, and go on with those workers that are there."""

    def train() -> dict[str, Any]:
        global strategy  # noqa: PLW0603 - it is that of the workers that are there
        strategy = getattr(replicant, STRATEGY)() if STRATEGY != "none" else replicant.get_strategy()
        return fit(replicant.keras.callbacks.BackupAndRestore(str(FOLDER / "backup"), save_freq=2))

    return replicant.run_elastic(train)


answer = {"fit": fit, "loop": loop, "saves": lambda: loop(saves=True), "elastic": elastic}[CASE]()
(FOLDER / f"answer-{RANK}.json").write_text(json.dumps(answer))
