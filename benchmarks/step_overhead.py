"""Measures what a strategy costs: a training step through ``strategy.run`` against the same step written by hand in JAX.

Both compute the same model, Adam update and loss on the same replicas. The hand-written step is one ``jax.jit`` of one
``shard_map`` with donated state and a flat all-reduce. The losses are compared first. Then rounds of steps alternate, and the
medians are printed. Run: ``python benchmarks/step_overhead.py [--replicas 2] [--rounds 30]``.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import replicant


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare the cost of strategy.run with a hand-written step.")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", choices=("cnn", "mlp", "deep", "all"), default="all")
    return parser.parse_args()


def make_model(kind: str):
    """Make the CNN of the guide, an MLP so small that only overhead is left, or one with 12 weights (38 variables with Adam's)."""
    import keras

    keras.utils.set_random_seed(7)
    if kind == "mlp":
        layers = [keras.Input((16,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    elif kind == "deep":
        hidden = [keras.layers.Dense(16, activation="relu") for _ in range(5)]
        layers = [keras.Input((16,)), *hidden, keras.layers.Dense(10)]
    else:
        layers = [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    return keras.Sequential(layers)


def with_replicant(kind: str, strategy, batch, global_batch: int):
    """Make a step as a user of Replicant writes it."""
    import keras

    with strategy.scope():
        model, optimizer = make_model(kind), keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(inputs):
        x, y = inputs
        with replicant.GradientTape() as tape:
            loss = replicant.compute_average_loss(loss_object(y, model(x, training=True)), global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    @replicant.function
    def step(inputs):
        return strategy.reduce("SUM", strategy.run(train_step, args=(inputs,)))

    return lambda: step(batch)


def by_hand(kind: str, strategy, batch, global_batch: int):
    """Make the same step in plain JAX, with Keras only for a stateless forward pass and update."""
    import jax
    import jax.numpy as jnp
    import keras
    from jax.sharding import NamedSharding, PartitionSpec

    model, optimizer = make_model(kind), keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    devices = strategy.placement.devices
    mesh = jax.sharding.Mesh(list(devices), ("replica",))
    same = NamedSharding(mesh, PartitionSpec())
    state = jax.device_put(([jnp.array(v) for v in model.trainable_variables], [jnp.array(v) for v in optimizer.variables]), same)

    def replica(state: Any, x: Any, y: Any) -> Any:
        weights, slots = state

        def loss_fn(weights: Any) -> Any:
            logits: Any = model.stateless_call(weights, [], x[0], training=True)[0]
            losses: Any = loss_object(y[0], logits)
            return jnp.sum(losses) / global_batch

        loss, gradients = jax.value_and_grad(loss_fn)(weights)
        flat = jax.lax.psum(jnp.concatenate([g.ravel() for g in gradients]), "replica")
        total, start = [], 0
        for g in gradients:
            total.append(flat[start : start + g.size].reshape(g.shape))
            start += g.size
        weights, slots = optimizer.stateless_apply(slots, total, weights)
        return (weights, slots), jax.lax.psum(loss, "replica")

    spec = PartitionSpec("replica")
    program = jax.jit(
        jax.shard_map(replica, mesh=mesh, in_specs=(PartitionSpec(), spec, spec), out_specs=PartitionSpec(), check_vma=False),
        donate_argnums=0,
    )
    x, y = (leaf.values[0][None] if leaf.stacked is None else leaf.stacked for leaf in batch)

    def step():
        nonlocal state
        state, loss = program(state, x, y)
        return loss

    return step


def make_batch(kind: str, strategy, per_replica: int):
    """Make one batch on the devices."""
    import numpy as np

    rng = np.random.default_rng(0)
    shape = (28, 28, 1) if kind == "cnn" else (16,)
    return strategy.experimental_distribute_values_from_function(
        lambda _: (
            rng.normal(size=(per_replica, *shape)).astype("float32"),
            rng.integers(0, 10, per_replica).astype("int32"),
        )
    )


def measure(kind: str, strategy, rounds: int) -> dict[str, float]:
    """Return the median milliseconds per step of both, and the medians of the ratio and difference of paired rounds."""
    import jax

    per_replica, steps = (64, 4) if kind == "cnn" else (16, 200)
    batch = make_batch(kind, strategy, per_replica)
    global_batch = per_replica * strategy.num_replicas_in_sync
    ours, theirs = with_replicant(kind, strategy, batch, global_batch), by_hand(kind, strategy, batch, global_batch)
    for i in range(5):
        a, b = float(ours()), float(theirs())
        if abs(a - b) > 1e-5:
            sys.exit(f"{kind}: step {i} gives loss {a} through replicant and {b} by hand, so they cannot be compared")
    times: dict[str, list[float]] = {"ours": [], "hand": []}
    for _ in range(rounds):
        for name, step in (("ours", ours), ("hand", theirs)):
            start = time.perf_counter()
            for _ in range(steps):
                jax.block_until_ready(step())
            times[name].append((time.perf_counter() - start) / steps * 1e3)
    ratio = statistics.median(a / b for a, b in zip(times["ours"], times["hand"], strict=True))
    return {
        "ours_ms": statistics.median(times["ours"]),
        "hand_ms": statistics.median(times["hand"]),
        "ratio": ratio,
        "overhead_us": statistics.median((a - b) * 1e3 for a, b in zip(times["ours"], times["hand"], strict=True)),
    }


def main() -> None:
    """Measure, and print the table."""
    args = parse()
    replicant.set_virtual_devices(args.replicas)
    strategy = replicant.MirroredStrategy([f"cpu:{i}" for i in range(args.replicas)], fuse_replicas=False)
    print(f"{Path(__file__).name}: {args.replicas} replicas, {os.cpu_count()} cores, medians of {args.rounds} paired rounds")
    print("| model | replicant ms/step | by hand ms/step | ratio | overhead us/step |")
    print("|---|---|---|---|---|")
    for kind in ("cnn", "mlp", "deep") if args.model == "all" else (args.model,):
        r = measure(kind, strategy, args.rounds)
        print(f"| {kind} | {r['ours_ms']:.3f} | {r['hand_ms']:.3f} | {r['ratio']:.3f} | {r['overhead_us']:.0f} |")


if __name__ == "__main__":
    main()
