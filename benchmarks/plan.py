"""Compares what ``replicant plan`` predicts for this machine's CPU with runs: the time of a step, and the bytes of all-reduces.

A plan gives the time of a step, measured on zeros, and the time that follows from rates alone. Then the same program trains, and
the median of its steps is taken. Both are repeated by turns, because the speed of a shared machine changes. Medians are compared,
and ranges are shown. The bytes that the plan for two GPUs counts by rule are compared with those in the program that XLA compiles
for two separate devices. Run: ``python benchmarks/plan.py [--steps 60] [--rounds 9] [--json]``.
"""

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicant

BATCH = 128  # per replica
SHAPES = {"cnn": (28, 28, 1), "mlp": (784,)}
WARM_UP = 10
WORST_TIME, WORST_BYTES = 0.25, 0.05  # the largest errors that are good


def make_model(kind: str) -> Any:
    """Make the network of one of the two guides."""
    keras.utils.set_random_seed(7)
    if kind == "mlp":
        layers = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    else:
        layers = [
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
        ]
    return keras.Sequential([keras.Input(SHAPES[kind]), *layers, keras.layers.Dense(10)])


class Program:
    """One training program, on all devices if `devices` is None. After it has run, `times` has the seconds of its steps."""

    def __init__(self, kind: str, devices: list[str] | None, steps: int, **options: Any):
        self.kind, self.devices, self.steps, self.options = kind, devices, steps, options
        self.times: list[float] = []

    def __call__(self) -> None:
        """Train, and note how long each step takes."""
        strategy = replicant.MirroredStrategy(self.devices, **self.options)
        rows = BATCH * strategy.num_replicas_in_sync
        with strategy.scope():
            model, optimizer = make_model(self.kind), keras.optimizers.Adam()
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
        data = rng.normal(size=(rows, *SHAPES[self.kind])).astype("float32"), rng.integers(0, 10, rows).astype("int32")
        batch = next(iter(strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensors(data))))
        for _ in range(WARM_UP + self.steps):
            began = time.perf_counter()
            float(step(batch))
            self.times.append(time.perf_counter() - began)
        del self.times[:WARM_UP]


def step_times(kind: str, num_replicas: int, steps: int, rounds: int) -> dict[str, Any]:
    """Return the predicted and measured times of a step, and their ranges."""
    program = Program(kind, [f"cpu:{i}" for i in range(num_replicas)], steps)
    plans, measured = [], []
    for _ in range(rounds):  # by turns, because the speed of the machine changes
        plans.append(replicant.plan.make_plan(program, f"cpu:{num_replicas}"))
        program.times = []
        program()
        measured.append(statistics.median(program.times))
    predicted = [plan.seconds for plan in plans]
    error = statistics.median(predicted) / statistics.median(measured) - 1
    return {
        "what": f"{kind}, cpu:{num_replicas}: ms of a step",
        "predicted": statistics.median(predicted) * 1e3,
        "measured": statistics.median(measured) * 1e3,
        "error": error,
        "predictions": [min(predicted) * 1e3, max(predicted) * 1e3],
        "runs": [min(measured) * 1e3, max(measured) * 1e3],
        "by_rates": statistics.median(plan.times.step for plan in plans) * 1e3,
        "good": abs(error) <= WORST_TIME,
    }


def exchanged_bytes(kind: str, **options: Any) -> dict[str, Any]:
    """Return the predicted and counted bytes of exchanges between two devices."""
    import jax

    from replicant.plan._chips import parse_target
    from replicant.plan._compile import find_step
    from replicant.plan._exchanges import exchanges_in
    from replicant.replicas._placement import Placement

    program = Program(kind, None, 1, fuse_replicas=False, **options)
    plan = replicant.plan.make_plan(program, "gpu:2xh100")
    step = find_step(program, parse_target("cpu:2"))
    compiled = step.lower(Placement(tuple(jax.devices()[:2]))).compile()
    counted = sum(x.num_bytes for x in exchanges_in(compiled.as_text()))
    return {
        "what": f"{kind}, two devices{''.join(f', {name}' for name in options)}: KiB exchanged",
        "predicted": plan.exchanged_bytes / 1024,
        "measured": counted / 1024,
        "error": plan.exchanged_bytes / counted - 1,
        "good": abs(plan.exchanged_bytes / counted - 1) <= WORST_BYTES,
    }


def main() -> int:
    """Print the table, and return 1 if an error is too large."""
    parser = argparse.ArgumentParser(description="Compare the predictions of replicant plan with runs.")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=sorted(SHAPES), default=list(SHAPES), help="the networks to time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    replicant.set_virtual_devices(2)
    rows = [step_times(kind, n, options.steps, options.rounds) for kind in options.only for n in (1, 2)]
    rows += [exchanged_bytes(kind) for kind in SHAPES]
    rows += [exchanged_bytes("mlp", shard_optimizer_state=True)]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"{'':44} {'predicted':>10} {'measured':>10} {'error':>7}  by rates  from ... to: predicted, measured")
        for row in rows:
            ranges = [f"{low:.2f} ... {high:.2f}" for low, high in (row["predictions"], row["runs"])] if "runs" in row else []
            rates = f"{row['by_rates']:8.2f}  {', '.join(ranges)}" if "by_rates" in row else ""
            verdict = "" if row["good"] else "  TOO FAR OFF"
            print(f"{row['what']:44} {row['predicted']:10.2f} {row['measured']:10.2f} {row['error']:+7.1%}  {rates}{verdict}")
    return 0 if all(row["good"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
