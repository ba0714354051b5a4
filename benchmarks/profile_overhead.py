"""How much longer a step takes while ``replicant.profile`` records it.

    python benchmarks/profile_overhead.py
    python benchmarks/profile_overhead.py --model mlp --blocks 60

Blocks of steps take turns, with a profile and without one, in an order that is drawn anew for each pair. A pair gives one ratio of
wall time and one of processor time, of all threads. The medians of the ratios are printed, with the quartiles. Starting JAX's
profiler and writing its file are no part of a step, and are printed in seconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np

import replicant

MODELS: dict[str, tuple[tuple[int, ...], int, Callable[[], list[Any]]]] = {
    "mlp": ((784,), 128, lambda: [keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(10)]),
    "cnn": (
        (28, 28, 1),
        128,
        lambda: [
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ],
    ),
    "tiny": ((16,), 64, lambda: [keras.layers.Dense(32, "relu"), keras.layers.Dense(2)]),
}


def make_block(name: str, steps: int) -> Callable[[], None]:
    """Return a function that takes `steps` steps, and waits for them."""
    shape, rows, layers = MODELS[name]
    strategy = replicant.MirroredStrategy()
    with strategy.scope():
        model, optimizer = keras.Sequential([keras.Input(shape), *layers()]), keras.optimizers.Adam()
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(losses(y, model(x, training=True)), global_batch_size=rows)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
        return loss

    @replicant.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch))

    rng = np.random.default_rng(0)
    data = (rng.normal(size=(rows, *shape)).astype("float32"), rng.integers(0, 2, rows))
    (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(data).batch(rows))

    def block() -> None:
        jax.block_until_ready([step(batch) for _ in range(steps)][-1])

    block()
    return block


def recorded(block: Callable[[], None], steps: int) -> tuple[float, float, float]:
    """Return wall and processor seconds of a block whose steps are all recorded, and the seconds around them."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, replicant.profile(steps=None, folder=folder) as profile:
        warm = replicant.function(lambda x: x)
        warm(np.zeros(1))  # starts JAX's profiler
        wall, processor = timed(block)
    around = time.perf_counter() - begin - wall
    assert len(profile._recorder.steps) == steps + 1 if profile._recorder else False, "all were recorded"
    return wall, processor, around


def timed(block: Callable[[], None]) -> tuple[float, float]:
    """Return the wall and processor seconds of a block."""
    wall, processor = time.perf_counter(), time.process_time()
    block()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description="Overhead of replicant.profile.")
    parser.add_argument("--model", choices=sorted(MODELS), nargs="*", default=sorted(MODELS))
    parser.add_argument("--blocks", type=int, default=30, help="pairs of blocks (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a block (default: %(default)s)")
    options = parser.parse_args()
    replicant.set_virtual_devices(2)
    order = random.Random(0)  # noqa: S311 - no secret
    print(f"{'model':6} {'ms per step':>12} {'wall':>24} {'processor':>24} {'start and write':>16}")
    for name in options.model:
        block = make_block(name, options.steps)
        rows: list[tuple[float, ...]] = []
        for _ in range(options.blocks):
            results: dict[bool, tuple[float, ...]] = {}
            for with_profile in order.sample([True, False], 2):
                results[with_profile] = recorded(block, options.steps) if with_profile else timed(block)
            own, plain = results[True], results[False]
            rows.append((1000 * plain[0] / options.steps, own[0] / plain[0], own[1] / plain[1], own[2]))
        plain_ms, wall, processor, around = zip(*rows, strict=True)
        parts = [f"{statistics.median(plain_ms):12.3f}", told(wall), told(processor), f"{statistics.median(around):14.3f} s"]
        print(f"{name:6} {' '.join(parts)}")


def told(ratios: tuple[float, ...]) -> str:
    """Write the median of some ratios, with the quartiles."""
    low, _, high = statistics.quantiles(ratios, n=4)
    return f"{statistics.median(ratios):10.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
