"""Measures how the time of a step grows with the size of the model, the number of variables or replicas, and the dataset's length.

The steps are those of a custom loop through ``strategy.run``. Each quantity is measured in a process of its own, with its points by
turns. The slope is that of the logarithms, over the points where growth is expected.
Run: ``python benchmarks/growth.py [--quantities variables] [--rounds 7]``.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ["REPLICANT_COMPILATION_CACHE"] = "0"  # compiling is measured, too

import numpy as np

import replicant

# isort: split
import jax
import keras

from _figures import machine, slope
from _plot import plot
from replicant.data import Dataset

BATCH = 128
Step = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A quantity that grows.

    Args:
        title: The title in the table and the plot.
        values: The values at which a step is measured.
        x_name: The name of the plot's x axis.
        expected: The expected slope.
        since: The place on the x axis from which it is expected. Below, the cost of a step itself prevails.
        steps: For each value, the steps of a round.
        make: A function that returns, for a value, its place on the x axis and a step.
    """

    title: str
    values: tuple[int, ...]
    x_name: str
    expected: float
    since: float
    steps: tuple[int, ...]
    make: Callable[[int], tuple[float, Step]]


def training(strategy: Any, model: Any, x: np.ndarray) -> Step:
    """Make a training step, whose batch stays on the devices."""
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1e-3)
        optimizer.build(model.trainable_variables)
    share = len(x) // strategy.num_replicas_in_sync

    def mine(context: Any) -> np.ndarray:
        first = context.replica_id_in_sync_group * share
        return x[first : first + share]

    batch = strategy.experimental_distribute_values_from_function(mine)

    def train_step(x: Any) -> Any:
        with replicant.GradientTape() as tape:
            losses: Any = keras.ops.mean(keras.ops.square(model(x, training=True)), axis=-1)
            loss = replicant.compute_average_loss(losses, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @replicant.function
    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(train_step, args=(x,)))

    return lambda: step(batch)


def mlp(strategy: Any, units: Sequence[int]) -> Any:
    """Make an MLP."""
    with strategy.scope():
        return keras.Sequential([keras.Input((units[0],)), *(keras.layers.Dense(n, activation="relu") for n in units[1:])])


def rows(width: int) -> np.ndarray:
    """Make a batch."""
    return np.random.default_rng(0).normal(size=(BATCH, width)).astype(np.float32)


def model_size(width: int) -> tuple[float, Step]:
    """Make a step of three square layers."""
    strategy = replicant.MirroredStrategy(["cpu:0"])
    model = mlp(strategy, [width] * 4)
    return float(model.count_params()), training(strategy, model, rows(width))


class Deep(keras.layers.Layer):
    """Many small layers, each with a matrix and a bias. So many layers of Keras would be too many for its recursion."""

    def __init__(self, depth: int):
        super().__init__()
        self.kernels = [self.add_weight(shape=(16, 16), name=f"kernel{i}") for i in range(depth)]
        self.biases = [self.add_weight(shape=(16,), initializer="zeros", name=f"bias{i}") for i in range(depth)]

    def call(self, x: Any) -> Any:
        """Apply all layers, which keep the shape."""
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            x = keras.ops.relu(keras.ops.matmul(x, kernel) + bias)
        return x


def variables(count: int) -> tuple[float, Step]:
    """Make a step of a model with `count` variables in half as many layers."""
    strategy = replicant.MirroredStrategy(["cpu:0"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((16,)), Deep(count // 2)])
    return float(count), training(strategy, model, rows(16))


def replicas(count: int) -> tuple[float, Step]:
    """Make a step of an MLP on `count` virtual devices, with the same global batch."""
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(count)])
    return float(count), training(strategy, mlp(strategy, [784, 512, 512, 10]), rows(784))


def dataset_length(length: int) -> tuple[float, Step]:
    """Make a step that reads a shuffled and repeated dataset."""
    strategy = replicant.MirroredStrategy(["cpu:0", "cpu:1"])
    x = np.random.default_rng(0).normal(size=(length, 16)).astype(np.float32)
    dataset = Dataset.from_tensor_slices(x).shuffle(length).repeat().batch(BATCH)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))

    @replicant.function
    def step(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(keras.ops.sum, args=(x,)), axis=None)

    return float(length), lambda: step(next(iterator))


QUANTITIES = {
    "model_size": Quantity("Size of the model", (16, 64, 256, 1024, 2048), "parameters", 1, 1e5, (100, 100, 50, 5, 2), model_size),
    "variables": Quantity(
        "Number of variables", (10, 100, 1_000, 3_000, 10_000), "variables", 1, 100, (100, 50, 10, 3, 2), variables
    ),
    "replicas": Quantity("Virtual devices, fused", (1, 2, 4, 8, 16, 32, 64), "replicas", 0, 1, (10,) * 7, replicas),
    "dataset_length": Quantity(
        "Length of the dataset", (1_000, 10_000, 100_000, 1_000_000, 5_000_000), "examples", 0, 1, (200,) * 5, dataset_length
    ),
}


# Tracing and compiling the layers and updates of so many variables takes most of a minute.
SLOW_TO_COMPILE = 10_000


def measure(name: str, rounds: int, full: bool) -> dict[str, Any]:
    """Measure one quantity: milliseconds per step of each point and round, and the seconds to the first step."""
    quantity = QUANTITIES[name]
    replicant.set_virtual_devices(max(2, *quantity.values) if name == "replicas" else 2)
    points, first = [], []
    for value in quantity.values:
        if name == "variables" and value >= SLOW_TO_COMPILE and not full:
            continue
        start = time.perf_counter()
        x, step = quantity.make(value)
        jax.block_until_ready(step())
        first.append(time.perf_counter() - start)
        points.append((x, step))
    times: list[list[float]] = [[] for _ in points]
    for turn in range(-1, rounds):
        for (_, step), num_steps, found in zip(points, quantity.steps[: len(points)], times, strict=True):
            start, result = time.perf_counter(), None
            for _ in range(num_steps):
                result = step()
            jax.block_until_ready(result)
            if turn >= 0:
                found.append((time.perf_counter() - start) / num_steps * 1e3)
    return {"quantity": name, "x": [x for x, _ in points], "ms": times, "first_seconds": first}


def apart(name: str, rounds: int, deadline: float, full: bool) -> dict[str, Any]:
    """Measure one quantity in a process of its own."""
    command = [sys.executable, __file__, "--one", name, "--rounds", str(rounds), *(["--full"] if full else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline, check=False)
    except subprocess.TimeoutExpired:
        return {"quantity": name, "failed": f"not ready after {deadline:g} s"}
    if done.returncode:
        return {"quantity": name, "failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:160]}
    return json.loads(done.stdout.splitlines()[-1])


def slope_of(result: dict[str, Any]) -> float:
    """Return the slope of the least times, over the points where growth is expected."""
    since = QUANTITIES[result["quantity"]].since
    seen = [(x, min(ms)) for x, ms in zip(result["x"], result["ms"], strict=True) if x >= since]
    return slope(*zip(*seen, strict=True))


def table(results: Sequence[dict[str, Any]]) -> str:
    """Format all quantities as Markdown."""
    lines = [
        "| | ms/step, median (least), at each size | slope: measured | expected | seconds to the first step |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        quantity = QUANTITIES[result["quantity"]]
        if "failed" in result:
            lines.append(f"| {quantity.title} | failed: {result['failed']} | | | |")
            continue
        sizes = zip(result["x"], result["ms"], strict=True)
        figures = ", ".join(f"{x:,.0f}: {statistics.median(ms):.3g} ({min(ms):.3g})" for x, ms in sizes)
        first = ", ".join(f"{seconds:.2g}" for seconds in result["first_seconds"])
        where = f" ({quantity.x_name} >= {quantity.since:,.0f})" if quantity.since > 1 else ""
        lines.append(f"| {quantity.title} | {figures} | {slope_of(result):.2f}{where} | {quantity.expected:g} | {first} |")
    return "\n".join(lines)


def draw(results: Sequence[dict[str, Any]], folder: Path) -> None:
    """Plot each quantity. The expected line goes through the last point, or through the first one if it is flat."""
    folder.mkdir(parents=True, exist_ok=True)
    for result in results:
        if "failed" in result:
            continue
        quantity = QUANTITIES[result["quantity"]]
        measured = [(x, min(ms)) for x, ms in zip(result["x"], result["ms"], strict=True)]
        at, ms = measured[-1] if quantity.expected else measured[0]
        ends = (max(measured[0][0], quantity.since), measured[-1][0])
        expected = [(x, ms * (x / at) ** quantity.expected) for x in ends]
        path = folder / f"growth-{result['quantity'].replace('_', '-')}.svg"
        names = {"title": quantity.title, "x_name": quantity.x_name, "y_name": "ms per step"}
        plot(path, **names, measured=measured, expected=expected)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure how the time of a step grows.")
    parser.add_argument("--quantities", nargs="*", choices=[*QUANTITIES], default=[*QUANTITIES])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--deadline", type=float, default=400, help="the seconds for one quantity (default: %(default)s)")
    parser.add_argument(
        "--full", action="store_true", help="also measure 10,000 variables, whose first step takes most of a minute"
    )
    parser.add_argument("--plots", type=Path, help="draw plots into this folder")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--one", choices=[*QUANTITIES], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, print the table and draw the plots."""
    args = parse()
    if args.one:
        print(json.dumps(measure(args.one, args.rounds, args.full)))
        return
    facts = machine()
    print(f"{Path(__file__).name}: {facts}", flush=True)
    results = [apart(name, args.rounds, args.deadline, args.full) for name in args.quantities]
    print(f"\n{table(results)}", flush=True)
    if args.plots:
        draw(results, args.plots)
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, "results": results}))


if __name__ == "__main__":
    main()
