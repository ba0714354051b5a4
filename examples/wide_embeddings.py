"""Train a recommender whose tables are on parameter servers, asynchronously and, for comparison, in one process.

    python examples/wide_embeddings.py
    python examples/wide_embeddings.py --workers 4 --max-staleness 3 --plot curve.png
    python examples/wide_embeddings.py --rows 20000 --steps 300

The data are synthetic clicks of users on items. Every user and every item has a hidden vector. The chance of a click follows from
how eager the user is, how good the item is, and how well the two vectors match. So the best possible loss and accuracy are known.
As in real life, a few users and items are popular and most are rare.

Both runs see the same examples. The synchronous run is the same program with one worker, in one process, where one step follows the
other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads it once, when it is imported

import keras
import numpy as np

import replicant
from _options import positive_int
from _progress import Progress
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, MinSizePartitioner

HIDDEN = 4
LEARNING_RATE = 0.5
NUM_TEST = 100_000
TEST = 1 << 40  # the number of a batch that is not used for training
SMOOTHED = 80  # the number of steps over which each point of a curve is the mean


class Result(NamedTuple):
    """The results of one run.

    Attributes:
        losses: The loss of each step, in the order in which the steps were scheduled.
        test_loss: The loss on the test examples.
        test_accuracy: The accuracy on the test examples, in percent.
        seconds: The duration of the training.
        memory: The memory of each process.
        stats: The statistics of the coordinator.
    """

    losses: list[float]
    test_loss: float
    test_accuracy: float
    seconds: float
    memory: dict[str, Memory]
    stats: dict[str, Any]


class Memory(NamedTuple):
    """The memory of a process in MB: all that is resident, and the parts of it that are its own and that are shared."""

    resident: float
    own: float
    shared: float


def main(argv: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    options = parse(argv)
    results = {"asynchronous": asynchronous(options), "synchronous": synchronous(options)}
    best = Clicks(options.rows, NUM_TEST).best()
    report(results, best)
    if options.plot is not None:
        draw({name: result.losses for name, result in results.items()}, best[0], options)
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train two wide embeddings on parameter servers, and in one process.")
    parser.add_argument(
        "--rows", type=positive_int, default=1_000_000, help="rows of each of the two tables (default: %(default)s)"
    )
    parser.add_argument("--width", type=positive_int, default=32, help="width of a row (default: %(default)s)")
    parser.add_argument("--servers", type=positive_int, default=2, help="number of parameter servers (default: %(default)s)")
    parser.add_argument("--workers", type=positive_int, default=2, help="number of workers (default: %(default)s)")
    parser.add_argument("--steps", type=positive_int, default=3200, help="steps of all workers together (default: %(default)s)")
    parser.add_argument("--batch", type=positive_int, default=512, help="examples per step (default: %(default)s)")
    parser.add_argument("--max-staleness", type=int, help="largest number of updates between a step's reads and its own update")
    parser.add_argument("--plot", type=Path, help="also draw both loss curves into this file (needs matplotlib)")
    return parser.parse_args(argv)


class Clicks:
    """An endless sequence of batches: pairs of user and item, and whether there was a click. It is the same in every process."""

    def __init__(self, rows: int, batch: int):
        self._rows, self._batch = rows, batch
        hidden = np.random.default_rng(0)
        self._tables = [hidden.standard_normal((rows, HIDDEN), "f4") for _ in range(2)]

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([1, number])
        ids = (self._rows ** rng.random((self._batch, 2))).astype("int32") - 1  # the n-th most popular has the weight 1 / n
        return ids, (rng.random(self._batch) < self.chance(ids)).astype("f4")

    def chance(self, ids: np.ndarray) -> np.ndarray:
        """Return the true chance of a click."""
        user, item = self._tables[0][ids[:, 0]], self._tables[1][ids[:, 1]]
        score = 2 * (user[:, 0] + item[:, 0]) + 0.5 * (user[:, 1:] * item[:, 1:]).sum(axis=1)
        return 1 / (1 + np.exp(-score))

    def best(self) -> tuple[float, float]:
        """Return the loss and accuracy of a model that knows the hidden vectors."""
        ids, clicked = self[TEST]
        chance = self.chance(ids).astype("f8")
        return log_loss(chance, clicked), accuracy(chance, clicked)


def log_loss(chance: np.ndarray, clicked: np.ndarray) -> float:
    """Return the mean cross entropy of predicted chances."""
    chance = np.clip(chance, 1e-12, 1 - 1e-12)
    return float(-np.mean(clicked * np.log(chance) + (1 - clicked) * np.log1p(-chance)))


def accuracy(chance: np.ndarray, clicked: np.ndarray) -> float:
    """Return the percentage of examples whose predicted chance is on the right side of one half."""
    return float(100 * np.mean((chance > 0.5) == (clicked > 0.5)))


def make_model(rows: int, width: int) -> keras.Model:
    """Make a model of two tables, the product of their rows, and a small dense tower."""
    ids = keras.Input((2,), dtype="int32")
    initial: Any = keras.initializers.RandomNormal(stddev=0.05)
    columns: Any = keras.ops.unstack(ids, axis=1)
    user, item = [keras.layers.Embedding(rows, width, initial)(column) for column in columns]
    x = keras.layers.Concatenate()([user, item, keras.layers.Multiply()([user, item])])
    x = keras.layers.Dense(32, "relu")(x)
    match = keras.layers.Dot(axes=1)([user, item])
    return keras.Model(ids, keras.layers.Add()([match, keras.layers.Dense(1)(x)]))


def make_step(model: keras.Model, optimizer: keras.Optimizer) -> Callable[..., Any]:
    """Make the step on one batch."""
    loss_object = keras.losses.BinaryCrossentropy(from_logits=True)

    @replicant.function
    def train(ids: Any, clicked: Any) -> Any:
        with replicant.GradientTape() as tape:
            loss = loss_object(clicked[:, None], model(ids, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return train


def evaluate(model: keras.Model, rows: int) -> tuple[float, float]:
    """Return the loss and accuracy on examples that were not used for training."""
    ids, clicked = Clicks(rows, NUM_TEST)[TEST]
    logits = [np.asarray(model(part))[:, 0] for part in np.array_split(ids, 10)]
    chance = 1 / (1 + np.exp(-np.concatenate(logits).astype("f8")))
    return log_loss(chance, clicked), accuracy(chance, clicked)


def asynchronous(options: argparse.Namespace) -> Result:
    """Train on parameter servers, with each worker at its own pace."""
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"] * options.servers, "worker": ["127.0.0.1:0"] * options.workers})
    partitioner = MinSizePartitioner(1 << 20, options.servers)
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), partitioner)
    try:
        return train_on(strategy, options, "asynchronous")
    finally:
        strategy.close()


def synchronous(options: argparse.Namespace) -> Result:
    """Train in this process, one step after the other. The one worker and the one server are threads of this process."""
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), transport="threads")
    try:
        return train_on(strategy, options, "synchronous")
    finally:
        strategy.close()


def train_on(strategy: replicant.ParameterServerStrategy, options: argparse.Namespace, title: str) -> Result:
    """Train on the servers and workers of `strategy`."""
    is_one = strategy.shape.num_workers == 1
    coordinator = ClusterCoordinator(strategy, max_staleness=0 if is_one else options.max_staleness)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, optimizer = make_model(options.rows, options.width), keras.optimizers.Adagrad(LEARNING_RATE)
    train = make_step(model, optimizer)
    rows, batch = options.rows, options.batch
    clicks = coordinator.create_per_worker_resource(lambda: Clicks(rows, batch))

    def step(clicks: Any, number: int) -> Any:
        return train(*clicks[number])

    ahead, remote, losses, start = 8 * strategy.shape.num_workers, [], [], time.perf_counter()
    with Progress(title, options.steps, batch) as progress:
        for i in range(options.steps + ahead):
            if i < options.steps:
                remote.append(coordinator.schedule(step, args=(clicks, i)))
            if i >= ahead:
                losses.append(float(remote[i - ahead].fetch()))
                progress.update(losses[-1])
    coordinator.join()
    seconds = time.perf_counter() - start
    return Result(losses, *evaluate(model, rows), seconds, memory_by_process(strategy), coordinator.stats())


def memory_by_process(strategy: replicant.ParameterServerStrategy) -> dict[str, Memory]:
    """Return the memory of the coordinator, the servers and the workers."""
    cluster = strategy.cluster
    members = {f"{member.role} {member.index}": member.running.pid for member in (*cluster.servers, *cluster.workers)}
    others = {name: memory_of(pid) for name, pid in members.items() if pid is not None}
    return {"coordinator" if others else "all in one": memory_of(os.getpid()), **others}


def memory_of(pid: int | None) -> Memory:
    """Return the memory of a process, or zeros if the system does not say."""
    status = Path(f"/proc/{pid}/status")
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines()) if status.exists() else {}
    resident, own, shared = (int(lines.get(name, "0").split()[0]) / 1e3 for name in ("VmRSS", "RssAnon", "RssShmem"))
    return Memory(resident, own, shared)


def report(results: dict[str, Result], best: tuple[float, float]) -> None:
    """Print the results of both runs, side by side."""
    print(f"\n{'':>14}{'steps/s':>10}{'test loss':>11}{'test accuracy':>15}")
    for name, result in results.items():
        rate = len(result.losses) / result.seconds
        print(f"{name:>14}{rate:>10.1f}{result.test_loss:>11.4f}{result.test_accuracy:>14.2f}%")
    print(f"{'best possible':>14}{'':>10}{best[0]:>11.4f}{best[1]:>14.2f}%")
    stats = results["asynchronous"].stats
    print(f"\nstaleness (how often 0, 1, 2, ... updates came between): {stats['staleness']}")
    print(f"travelled per step: {stats['bytes_per_closure'] / 1e3:.0f} kB")
    print(f"\n{'MB':>14}{'resident':>10}{'own':>8}{'shared':>8}")
    for result in results.values():
        for process, memory in result.memory.items():
            print(f"{process:>14}{memory.resident:>10.0f}{memory.own:>8.0f}{memory.shared:>8.0f}")


def smoothed(losses: list[float]) -> tuple[list[int], list[float]]:
    """Return numbers of steps, and the mean loss of the steps before each of them."""
    ends = list(range(SMOOTHED, len(losses) + 1, SMOOTHED))
    return ends, [float(np.mean(losses[end - SMOOTHED : end])) for end in ends]


def draw(curves: dict[str, list[float]], best: float, options: argparse.Namespace) -> None:
    """Draw both curves into a file."""
    import matplotlib.pyplot as plt  # pyright: ignore[reportMissingImports]

    for (name, losses), width in zip(curves.items(), (1, 4), strict=True):
        steps, means = smoothed(losses)
        title = f"{options.servers} servers, {options.workers} workers" if name == "asynchronous" else "one process, synchronous"
        plt.plot([options.batch * step for step in steps], means, linewidth=width, alpha=1.6 / (width + 1), label=title)
    plt.axhline(best, color="grey", linestyle=":", label="best possible")
    plt.xlabel("examples")
    plt.ylabel(f"loss (mean of {SMOOTHED} steps)")
    plt.legend()
    plt.savefig(options.plot)


if __name__ == "__main__":
    sys.exit(main())
