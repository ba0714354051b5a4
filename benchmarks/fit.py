"""Measures what ``fit`` costs under a strategy, against plain Keras on one device and ``keras.distribution.DataParallel``.

Each way trains the same model on the same batches. The losses are compared first. Then rounds of one epoch each alternate, and the
medians of paired rounds are printed. DataParallel does not bound the steps in flight and can deadlock on CPU, so it runs in a
process of its own, against plain Keras, with a deadline. Run: ``python benchmarks/fit.py [--replicas 2] [--rounds 15]``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicant

STEPS = {"mlp": 60, "cnn": 8}  # per epoch
BATCH = {"mlp": 64, "cnn": 128}
WARM_UP_EPOCHS = 2


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure the cost of fit under a strategy.")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", choices=("cnn", "mlp", "both"), default="both")
    parser.add_argument("--deadline", type=float, default=300, help="the seconds for DataParallel (default: %(default)s)")
    parser.add_argument("--data-parallel", action="store_true", help="measure only DataParallel and plain Keras, and print JSON")
    return parser.parse_args()


def make_model(kind: str) -> Any:
    """Make the network of one of the two Keras guides."""
    keras.utils.set_random_seed(7)
    if kind == "mlp":
        layers = [keras.Input((784,)), *[keras.layers.Dense(256, activation="relu") for _ in range(2)]]
    else:
        layers = [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
        ]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    return model


def make_data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Make an epoch of full batches."""
    rng, rows = np.random.default_rng(0), STEPS[kind] * BATCH[kind]
    shape = (784,) if kind == "mlp" else (28, 28, 1)
    return rng.normal(size=(rows, *shape)).astype(np.float32), rng.integers(0, 10, rows).astype(np.int32)


class Way:
    """One way of training, with a model and its seconds per epoch."""

    def __init__(self, kind: str, scope: Any = None, distribution: Any = None):
        self._data, self._batch, self._distribution = make_data(kind), BATCH[kind], distribution
        keras.distribution.set_distribution(distribution)
        if scope is None:
            self._model = make_model(kind)
        else:
            with scope:
                self._model = make_model(kind)
        self.seconds: list[float] = []

    def train(self) -> float:
        """Train for one epoch, and return its loss."""
        keras.distribution.set_distribution(self._distribution)
        start = time.perf_counter()
        history = self._model.fit(*self._data, batch_size=self._batch, shuffle=False, verbose=0).history
        self.seconds.append(time.perf_counter() - start)
        return history["loss"][0]


def measure(kind: str, ways: dict[str, Way], rounds: int) -> None:
    """Train in all ways by turns."""
    for epoch in range(WARM_UP_EPOCHS):
        losses = {name: way.train() for name, way in ways.items()}
        if max(losses.values()) - min(losses.values()) > 1e-4:
            sys.exit(f"{kind}: the losses of epoch {epoch} differ, so the ways cannot be compared: {losses}")
    for way in ways.values():
        way.seconds.clear()
    for _ in range(rounds):
        for way in ways.values():
            way.train()


def compare(kind: str, ways: dict[str, Way]) -> list[dict[str, Any]]:
    """Return the median milliseconds per step, and the median ratio to plain Keras in the same round."""
    plain = ways["plain Keras"].seconds
    return [
        {
            "model": kind,
            "way": name,
            "ms": statistics.median(way.seconds) / STEPS[kind] * 1e3,
            "ratio": statistics.median(a / b for a, b in zip(way.seconds, plain, strict=True)),
        }
        for name, way in ways.items()
    ]


def with_replicant(kind: str, replicas: int, rounds: int) -> list[dict[str, Any]]:
    """Measure plain Keras, and strategies with one and several replicas."""
    many = f"MirroredStrategy, {replicas} devices"
    ways = {
        "plain Keras": Way(kind),
        "MirroredStrategy, 1 device": Way(kind, replicant.MirroredStrategy(["cpu:0"]).scope()),
        many: Way(kind, replicant.MirroredStrategy([f"cpu:{i}" for i in range(replicas)]).scope()),
    }
    measure(kind, ways, rounds)
    return compare(kind, ways)


def with_data_parallel(kind: str, replicas: int, rounds: int) -> list[dict[str, Any]]:
    """Measure plain Keras, and Keras's own data parallelism."""
    distribution = keras.distribution.DataParallel(devices=[f"cpu:{i}" for i in range(replicas)])
    ways = {"plain Keras": Way(kind), f"DataParallel, {replicas} devices": Way(kind, distribution=distribution)}
    measure(kind, ways, rounds)
    return compare(kind, ways)[1:]


def data_parallel_apart(kind: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure data parallelism in a process of its own. If that dies or hangs, this is the result."""
    command = [sys.executable, __file__, "--data-parallel", "--model", kind]
    command += ["--replicas", str(args.replicas), "--rounds", str(args.rounds)]
    failed: dict[str, Any] = {"model": kind, "ms": None, "ratio": None}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.deadline, check=False)
    except subprocess.TimeoutExpired:
        return [failed | {"way": f"DataParallel: hung for {args.deadline:g} s"}]
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [failed | {"way": f"DataParallel: died with status {done.returncode} ({reason[:80]})"}]
    return json.loads(done.stdout)


def main() -> None:
    """Measure, and print the table."""
    args = parse()
    replicant.set_virtual_devices(args.replicas)
    kinds = ("cnn", "mlp") if args.model == "both" else (args.model,)
    if args.data_parallel:
        print(json.dumps([row for kind in kinds for row in with_data_parallel(kind, args.replicas, args.rounds)]))
        return
    print(f"{Path(__file__).name}: {os.cpu_count()} cores, medians of {args.rounds} paired rounds")
    print("| model | way | ms/step | ratio to plain Keras |")
    print("|---|---|---|---|")
    for kind in kinds:
        for row in with_replicant(kind, args.replicas, args.rounds) + data_parallel_apart(kind, args):
            numbers = ["-", "-"] if row["ms"] is None else [f"{row['ms']:.2f}", f"{row['ratio']:.3f}"]
            print(f"| {kind} | {row['way']} | {numbers[0]} | {numbers[1]} |", flush=True)


if __name__ == "__main__":
    main()
