"""Train, get killed again and again, and end with the loss curve of an undisturbed run.

    python examples/resume_after_kill.py
    python examples/resume_after_kill.py --kills 5 --plot curve.png

The program starts itself as a child, which kills itself with SIGKILL after a random number of steps, even while it writes a
checkpoint. The next child goes on, and the last one trains to the end. Another child trains undisturbed. Both loss curves are
compared value by value, and drawn over each other.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

NUM_REPLICAS = 2
BATCH_SIZE = 64
NUM_EPOCHS = 3
STEPS_PER_SAVE = 5
WIDTH, HEIGHT = 72, 16


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    parser = argparse.ArgumentParser(description="Kill a training run at random steps and compare it with an undisturbed one.")
    parser.add_argument("--kills", type=int, default=3, help="number of kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed for the steps of the kills (default: %(default)s)")
    parser.add_argument("--plot", type=Path, help="also draw both curves into this file (needs matplotlib)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--last-step", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child is not None:
        train(options.child, options.last_step)
        return 0
    with tempfile.TemporaryDirectory() as name:
        whole = run_child(Path(name) / "whole", None)
        print(f"undisturbed: {len(whole)} steps")
        rng, folder = random.Random(options.seed), Path(name) / "killed"  # noqa: S311 - no secret
        for last_step in sorted(rng.randrange(1, len(whole)) for _ in range(options.kills)):
            print(f"killed in step {last_step}; the checkpoint has {len(run_child(folder, last_step))} steps")
        killed = run_child(folder, None)
    print(f"after {options.kills} kills: {len(killed)} steps")
    print(text_plot(whole, killed))
    if options.plot is not None:
        draw(whole, killed, options.plot)
    if whole != killed:
        print("The curves differ.", file=sys.stderr)
        return 1
    print(f"All {len(whole)} losses are the same, to the last bit.")
    return 0


def run_child(folder: Path, last_step: int | None) -> list[float]:
    """Train in another process, which kills itself in `last_step`. Returns the losses that are safe on disk."""
    command = [sys.executable, __file__, "--child", str(folder), *([] if last_step is None else ["--last-step", str(last_step)])]
    child = subprocess.run(command, check=False)  # noqa: S603 - this file
    expected = 0 if last_step is None else -signal.SIGKILL
    if child.returncode != expected:
        raise SystemExit(f"The child ended with exit code {child.returncode} instead of {expected}.")
    return losses_on_disk(folder)


def losses_on_disk(folder: Path) -> list[float]:
    """Read the losses from the newest checkpoint, or from the finished run."""
    import replicant

    finished = folder / "losses.json"
    if finished.exists():
        return json.loads(finished.read_text())
    path = replicant.latest_checkpoint(folder)
    if path is None:
        return []
    progress = replicant.Checkpoint(progress=Progress())
    progress.restore(path).expect_partial()
    return progress.progress.losses


class Progress:
    """How far the training is. An object with ``state`` and ``restore`` can be part of a checkpoint."""

    def __init__(self) -> None:
        self.epoch = 0
        self.losses: list[float] = []

    def state(self) -> dict[str, Any]:
        """Return the state, in values that JSON can represent."""
        return {"epoch": self.epoch, "losses": self.losses}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to an earlier state."""
        self.epoch, self.losses = state["epoch"], state["losses"]


def make_or_restore(strategy: Any, batches: Any, folder: Path) -> tuple[Any, Any]:
    """Make everything that is trained, and restore it if there is a checkpoint."""
    import keras

    import replicant

    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(10)])
        schedule: Any = keras.optimizers.schedules.ExponentialDecay(0.003, 50, 0.9)
        optimizer = keras.optimizers.Adam(schedule)
    checkpoint = replicant.Checkpoint(model=model, optimizer=optimizer, iterator=iter(batches), progress=Progress())
    manager = replicant.CheckpointManager(checkpoint, folder, max_to_keep=2)
    manager.restore_or_initialize()
    return checkpoint, manager


def train(folder: Path, last_step: int | None) -> None:
    """Train, starting where the last run stopped."""
    import replicant

    replicant.set_virtual_devices(NUM_REPLICAS)
    import keras

    from _datasets import load
    from replicant.data import Dataset

    keras.utils.set_random_seed(1)
    strategy = replicant.MirroredStrategy(replicant.list_devices()[:NUM_REPLICAS])
    data = load("digits", None)
    dataset = Dataset.from_tensor_slices((data.train_images.reshape(len(data.train_images), -1), data.train_labels))
    batches = strategy.experimental_distribute_dataset(dataset.shuffle(2000, seed=1).batch(BATCH_SIZE))
    checkpoint, manager = make_or_restore(strategy, batches, folder)
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(batch: Any) -> Any:
        images, labels = batch
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(
                loss_object(labels, checkpoint.model(images, training=True)), global_batch_size=BATCH_SIZE
            )
        gradients = tape.gradient(loss, checkpoint.model.trainable_variables)
        checkpoint.optimizer.apply_gradients(zip(gradients, checkpoint.model.trainable_variables, strict=True))
        return loss

    @replicant.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(batch,)), axis=None)

    progress, in_background = checkpoint.progress, replicant.CheckpointOptions(enable_async=True)
    with manager:
        while progress.epoch < NUM_EPOCHS:
            for batch in checkpoint.iterator:
                progress.losses.append(float(step(batch)))
                if len(progress.losses) % STEPS_PER_SAVE == 0:
                    manager.save(options=in_background)
                if len(progress.losses) == last_step:
                    os.kill(os.getpid(), signal.SIGKILL)
            progress.epoch += 1
            checkpoint.iterator = iter(batches)
        checkpoint.iterator.close()
    (folder / "losses.json").write_text(json.dumps(progress.losses))


def text_plot(whole: list[float], killed: list[float]) -> str:
    """Draw both curves as text: ``.`` is the undisturbed one, ``o`` the killed one, and ``#`` both."""
    highest = max(whole + killed)
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for curve, mark in ((whole, "."), (killed, "o")):
        for i, loss in enumerate(curve):
            row, column = HEIGHT - 1 - round((HEIGHT - 1) * loss / highest), round((WIDTH - 1) * i / max(1, len(curve) - 1))
            grid[row][column] = "#" if grid[row][column] not in (" ", mark) else mark
    return "\n".join(f"|{''.join(row).rstrip()}" for row in grid) + "\n+" + "-" * WIDTH


def draw(whole: list[float], killed: list[float], file: Path) -> None:
    """Draw both curves into a file."""
    import matplotlib.pyplot as plt  # pyright: ignore[reportMissingImports]

    plt.plot(whole, linewidth=4, alpha=0.4, label="undisturbed")
    plt.plot(killed, linewidth=1, label="killed and resumed")
    plt.xlabel("step")
    plt.ylabel("loss")
    plt.legend()
    plt.savefig(file)


if __name__ == "__main__":
    sys.exit(main())
