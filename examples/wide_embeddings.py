"""A recommender whose tables lie on parameter servers, trained asynchronously and, to compare, in one process.

The data are clicks of users on items, and made: every user and item has a hidden vector, and the chance of a click follows from
their product, so the best possible loss is known.

Run: ``python examples/wide_embeddings.py [--rows 1000000] [--workers 2] [--steps 2000]``.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, MinSizePartitioner

HIDDEN = 4


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Asynchronous training of two wide embeddings.")
    parser.add_argument("--rows", type=int, default=2_000, help="of each table (default: %(default)s)")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600, help="of all workers together (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--max-staleness", type=int)
    return parser.parse_args()


class Clicks:
    """Endless batches of (user, item) and whether it was a click. Few users and items are popular, as in life."""

    def __init__(self, rows: int, batch: int, seed: int):
        self._rng = np.random.default_rng(seed)
        self._rows, self._batch = rows, batch
        hidden = np.random.default_rng(0)
        self._tables = [hidden.normal(size=(rows, HIDDEN)).astype("f4") for _ in range(2)]

    def __iter__(self) -> "Clicks":
        return self

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        ids = (self._rows * self._rng.random((self._batch, 2)) ** 3).astype("int32")
        return ids, (self._rng.random(self._batch) < self.chance(ids)).astype("f4")

    def chance(self, ids: np.ndarray) -> np.ndarray:
        """The true chance of a click."""
        score = (self._tables[0][ids[:, 0]] * self._tables[1][ids[:, 1]]).sum(axis=1)
        return 1 / (1 + np.exp(-score))


def make_model(rows: int, width: int) -> keras.Model:
    """Two tables, their product, and a small dense tower."""
    ids = keras.Input((2,), dtype="int32")
    initial: Any = keras.initializers.RandomNormal(stddev=0.3)
    columns: Any = keras.ops.unstack(ids, axis=1)
    user, item = [keras.layers.Embedding(rows, width, initial)(column) for column in columns]
    x = keras.layers.Concatenate()([user, item, keras.layers.Multiply()([user, item])])
    x = keras.layers.Dense(32, "relu")(x)
    match = keras.layers.Dot(axes=1)([user, item])
    return keras.Model(ids, keras.layers.Add()([match, keras.layers.Dense(1)(x)]))


def make_step(model: keras.Model, optimizer: keras.Optimizer) -> Callable[..., object]:
    """One step on one batch."""
    loss_object = keras.losses.BinaryCrossentropy(from_logits=True)

    @replicant.function
    def train(ids, clicked):
        with replicant.GradientTape() as tape:
            loss = loss_object(clicked[:, None], model(ids, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return train


def asynchronous(args: argparse.Namespace) -> list[float]:
    """Losses of all steps, in the order in which they were scheduled."""
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"] * args.servers, "worker": ["127.0.0.1:0"] * args.workers})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), MinSizePartitioner(1 << 20, args.servers))
    coordinator = ClusterCoordinator(strategy, max_staleness=args.max_staleness)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, optimizer = make_model(args.rows, args.width), keras.optimizers.Adagrad(0.3)
    train = make_step(model, optimizer)
    rows, batch = args.rows, args.batch
    clicks = iter(coordinator.create_per_worker_dataset(lambda: Clicks(rows, batch, seed=os.getpid())))
    start = time.perf_counter()
    losses = [coordinator.schedule(lambda iterator: train(*next(iterator)), args=(clicks,)) for _ in range(args.steps)]
    coordinator.join()
    seconds = time.perf_counter() - start
    stats = coordinator.stats()
    print(f"{args.workers} workers: {args.steps / seconds:.0f} steps/s, {stats['bytes_per_closure'] / 1e3:.0f} kB per step")
    print(f"staleness (how often 0, 1, 2, ... updates came between): {stats['staleness']}")
    for member in (*strategy.cluster.servers, *strategy.cluster.workers):
        print(f"{member}: {resident_megabytes(member.running.pid):.0f} MB resident")
    strategy.close()
    return [float(loss) for loss in coordinator.fetch(losses)]


def resident_megabytes(pid: int | None) -> float:
    """Memory of a process, with what it shares; 0 where the system does not say."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmRSS")), 0.0)


def synchronous(args: argparse.Namespace) -> list[float]:
    """Losses of as many steps, one after the other, in this process."""
    keras.utils.set_random_seed(1)
    model, optimizer = make_model(args.rows, args.width), keras.optimizers.Adagrad(0.3)
    train, clicks = make_step(model, optimizer), Clicks(args.rows, args.batch, seed=7)
    return [float(train(*next(clicks))) for _ in range(args.steps)]  # type: ignore[arg-type]


def best_loss(args: argparse.Namespace) -> float:
    """What a model that knows the hidden vectors would reach."""
    clicks = Clicks(args.rows, 100_000, seed=8)
    ids, clicked = next(clicks)
    chance = clicks.chance(ids).astype("f8")
    return float(-np.mean(clicked * np.log(chance) + (1 - clicked) * np.log1p(-chance)))


def main() -> None:
    """Print both curves."""
    args = parse()
    curves = {"asynchronous": asynchronous(args), "synchronous": synchronous(args)}
    part = max(1, args.steps // 8)
    print(f"\n{'steps':>8}" + "".join(f"{name:>16}" for name in curves))
    for end in range(part, args.steps + 1, part):
        print(f"{end:>8}" + "".join(f"{np.mean(losses[end - part : end]):>16.4f}" for losses in curves.values()))
    print(f"best possible: {best_loss(args):.4f}")


if __name__ == "__main__":
    main()
