"""What a BatchNormalization and the ReLU after it cost in training, with the kernel `numba_norm` and without it.

Both are computed forward and back, by Keras's layers in a step of a strategy with one CPU device. The images and the gradients of
the results come from so many arrays that no cache holds them (`--megabytes`), and then are always the same ones. The two ways take
turns, array by array. Printed are medians in ms. Run: ``python benchmarks/normalization.py [--rounds 20] [--megabytes 96]``.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import keras
import numpy as np

import replicant
from replicant import kernels

SHAPES = [(32, 48, 48, 16), (32, 48, 48, 32), (32, 24, 24, 64), (32, 12, 12, 128), (32, 6, 6, 256), (512, 1024)]
Step = Callable[[Any, Any], Any]


def step_of(strategy: Any, shape: tuple[int, ...]) -> Step:
    """A step that returns the gradients of images, scales and shifts."""
    with strategy.scope():
        norm, relu = keras.layers.BatchNormalization(), keras.layers.ReLU()
        norm.build(shape)

    def replica_step(images: Any, gradient: Any) -> Any:
        with replicant.GradientTape() as tape:
            out = relu(norm(images, training=True))
        return tape.gradient(out, [images, norm.gamma, norm.beta], output_gradients=gradient)

    return replicant.function(lambda *arrays: strategy.run(replica_step, args=arrays))


def medians(shape: tuple[int, ...], rounds: int, megabytes: float) -> list[float]:
    """The medians without the kernel and with it, of operands from memory, and then of those in the cache."""
    strategy, rng = replicant.MirroredStrategy(["cpu:0"]), np.random.default_rng(0)
    count = max(2, int(megabytes * 1e6 / 8 / np.prod(shape)))
    arrays = [[jax.device_put(rng.standard_normal(shape, dtype=np.float32)) for _ in range(2)] for _ in range(count)]
    ways = [("numba_norm", step_of(strategy, shape)), ("attention", step_of(strategy, shape))]  # of which the step has none
    found = []
    for drawn in (arrays, arrays[:1] * count):
        times: dict[str, list[float]] = {off: [] for off, _ in ways}
        for turn in range(rounds):
            for off, step in ways:
                with kernels.disabled(off):
                    for operands in drawn:
                        start = time.perf_counter()
                        jax.block_until_ready(step(*operands))
                        if turn > 0:  # which compiles
                            times[off].append(time.perf_counter() - start)
        found += [1e3 * statistics.median(times[off]) for off, _ in ways]
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="BatchNormalization and ReLU with numba_norm and without it")
    parser.add_argument("--rounds", type=int, default=20, help="how often each way takes its turn, at least 2")
    parser.add_argument("--megabytes", type=float, default=96, help="of the arrays that take turns")
    args = parser.parse_args()
    if args.rounds < 2:
        parser.error(f"--rounds must be 2 or more, because the first one compiles; got {args.rounds}")
    print(kernels.status())
    print(f"{'':>18}{'from memory':>24}{'from the cache':>24}")
    print(f"{'shape':>18}" + f"{'without':>12}{'with':>12}" * 2)
    for shape in SHAPES:
        figures = medians(shape, args.rounds, args.megabytes)
        print(f"{'x'.join(map(str, shape)):>18}" + "".join(f"{figure:>12.3f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
