"""Measures what a step costs under ``FullyShardedStrategy``, against a ``MirroredStrategy`` whose replicas have their own programs.

Both train the transformer of the benchmark on virtual CPU devices, in a custom loop and in ``fit``. The losses are compared first.
Then rounds of some steps each alternate, and the medians of paired rounds are printed, of the clock and of the processor's time.
Run: ``python benchmarks/sliced.py [--devices 2 4] [--rounds 11]``.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import numpy as np

import replicant

# isort: split
import keras

sys.path.insert(0, str(Path(__file__).parent / "contenders"))

from _models import transformer  # pyright: ignore[reportMissingImports]

from _figures import machine, shown
from replicant.data import Dataset

LENGTH, VOCABULARY = 128, 256
GOOD = 1.3  # the largest ratio that is good


def strategy_of(kind: str, num_devices: int) -> Any:
    """Make one of the two strategies."""
    names = [f"cpu:{i}" for i in range(num_devices)]
    if kind == "sliced":
        return replicant.FullyShardedStrategy(names)
    return replicant.MirroredStrategy(names, fuse_replicas=False)


def data_of(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Make tokens, and the token after each of them."""
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (rows, LENGTH + 1)).astype("int32")
    return tokens[:, :-1], tokens[:, 1:]


def loop(strategy: Any, rows: int, steps: int) -> Callable[[], float]:
    """Return a function that takes some steps of a custom loop, and returns the last loss."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        model, optimizer = keras.Model(tokens, transformer(tokens)), keras.optimizers.Adam(1e-4)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            each = keras.ops.mean(losses(y, model(x, training=True)), axis=-1)
            loss = replicant.compute_average_loss(each, global_batch_size=rows)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    step = replicant.function(lambda batch: strategy.reduce("SUM", strategy.run(replica_step, args=batch)))
    batch = next(iter(strategy.experimental_distribute_dataset(Dataset.from_tensors(data_of(rows)))))

    def train() -> float:
        return [float(step(batch)) for _ in range(steps)][-1]

    return train


def fit(strategy: Any, rows: int, steps: int) -> Callable[[], float]:
    """Return a function that takes some steps of ``fit``, and returns their mean loss."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        tokens = keras.Input((LENGTH,), dtype="int32")
        model: Any = keras.Model(tokens, transformer(tokens))
        model.compile(keras.optimizers.Adam(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = (np.concatenate([part] * steps) for part in data_of(rows))

    def train() -> float:
        return model.fit(x, y, batch_size=rows, shuffle=False, verbose=0).history["loss"][-1]

    return train


def measured(train: Callable[[], float]) -> tuple[float, float, float]:
    """Return the seconds of the clock and of the processor, and the loss."""
    clock, processor = time.perf_counter(), time.process_time()
    loss = train()
    return time.perf_counter() - clock, time.process_time() - processor, loss


def main() -> int:
    """Measure, and print a table. The exit status is 1 if a ratio is above what is good."""
    parser = argparse.ArgumentParser(description="Measure the cost of weights in slices.")
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4], help="numbers of devices (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--steps", type=int, default=4, help="of a round (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=32, help="of the global batch (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=("loop", "fit"), default=["loop", "fit"])
    options = parser.parse_args()
    replicant.set_virtual_devices(max(options.devices))
    print(f"{machine()}\n")
    print("| way | devices | mirrored, ms a step | in slices | ratio by the clock | by the processor's time |")
    print("|---" * 6 + "|")
    worst = 0.0
    for way in options.ways:
        for n in options.devices:
            make = {"loop": loop, "fit": fit}[way]
            kinds = {kind: make(strategy_of(kind, n), options.rows, options.steps) for kind in ("sliced", "mirrored")}
            for _ in range(2):
                first = {kind: train() for kind, train in kinds.items()}
                np.testing.assert_allclose(first["sliced"], first["mirrored"], rtol=1e-4)
            rounds: dict[str, list[Any]] = {kind: [] for kind in kinds}
            for _ in range(options.rounds):
                for kind, train in kinds.items():
                    rounds[kind].append(measured(train))
            clock, processor = ({kind: [each[i] for each in found] for kind, found in rounds.items()} for i in range(2))
            times = [f"{statistics.median(clock[kind]) / options.steps * 1e3:.0f}" for kind in ("mirrored", "sliced")]
            ratios = [shown(each["sliced"], each["mirrored"]) for each in (clock, processor)]
            print(f"| {way} | {n} | {' | '.join([*times, *ratios])} |", flush=True)
            worst = max(worst, *(float(each.split()[0]) for each in ratios))
    print(f"\nThe largest ratio is {worst:.2f}; good is at most {GOOD}.")
    return int(worst > GOOD)


if __name__ == "__main__":
    sys.exit(main())
