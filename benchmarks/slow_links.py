"""Measures steps on two hosts whose link is slow: with a delay, with loss, or of 100 Mbit/s.

The hosts are Linux namespaces of this machine (``tests/hosts/_bench.py``), which needs root, or user namespaces and /dev/net/tun.
Every contestant trains an MLP (784-256-256-10, SGD, a global batch of 128). For each link, the medians of the rounds are printed,
with the lower bound: one delay for the one exchange that a step needs, and the bytes of the gradients over the bandwidth.
Run: ``python benchmarks/slow_links.py [--rounds 3] [--source FOLDER]``, where FOLDER holds another version of Replicant to compare.

With ``--sums --torch PYTHON``, it measures all-reduces of 1, 10 and 100 MB instead, on a link of 1 ms, by turns with PyTorch's over
gloo. PYTHON is an interpreter with torch.
"""

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BATCH, WIDTHS = 128, (784, 256, 256, 10)
CONTESTANTS = ("loop", "loop, packs of 256 KB", "fit", "fit, micro-batches")
SECONDS = 300.0  # for one contestant
SUMS = {1: 11, 10: 7, 100: 3}  # how many of each size, in megabytes, one process makes
MTU = 9000  # bytes of a frame
LARGE_MTU = 60_000  # for sums, as of a network card that cuts segments itself: else the switch, which is in Python, binds


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of link."""

    name: str
    delay: float  # seconds, in each direction
    loss: float = 0.0
    rate: float | None = None  # bits per second
    steps: int = 30
    mtu: int = MTU


KINDS = (
    Kind("5 ms", 0.005),
    Kind("50 ms", 0.05, steps=12),
    Kind("5 ms, 1 % loss", 0.005, loss=0.01),
    Kind("5 ms, 100 Mbit/s", 0.005, rate=1e8),
)


def contestant(name: str, steps: int) -> float:
    """Return the seconds of a step on one of the workers."""
    import replicant

    options = replicant.CommunicationOptions(bytes_per_pack=1 << 18 if "packs" in name else 0)
    strategy = replicant.MultiWorkerMirroredStrategy(communication_options=options)
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(BATCH * steps, WIDTHS[0])).astype(np.float32), rng.integers(0, WIDTHS[-1], BATCH * steps)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(width, "relu") for width in WIDTHS[1:-1]]
        model: Any = keras.Sequential([keras.Input(WIDTHS[:1]), *layers, keras.layers.Dense(WIDTHS[-1])])
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss_of)
    if name.startswith("fit"):
        if "micro" in name:
            replicant.keras.use_micro_batches(model, accumulate_steps=2)
        model.fit(x[: 3 * BATCH], y[: 3 * BATCH], batch_size=BATCH, verbose=0)
        begin = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, verbose=0)
        return (time.perf_counter() - begin) / steps
    losses_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(images: Any, labels: Any) -> Any:
        with replicant.GradientTape() as tape:
            losses = losses_of(labels, model(images, training=True))
            loss = replicant.compute_average_loss(losses, global_batch_size=BATCH)
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @replicant.function
    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch))

    batches = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices((x, y)).batch(BATCH))
    for batch in itertools.islice(batches, 3):
        float(step(batch))
    begin, loss = time.perf_counter(), None
    for batch in batches:
        loss = step(batch)
    assert loss is not None, "there are steps"
    float(loss)
    return (time.perf_counter() - begin) / steps


def sums() -> dict[str, float]:
    """Return the seconds of all-reduces of Replicant's, the median for each size."""
    import replicant

    strategy = replicant.MultiWorkerMirroredStrategy()
    import jax
    import numpy as np

    def total(x: Any) -> Any:
        context: Any = replicant.get_replica_context()
        return context.all_reduce("SUM", x)

    found = {}
    for size, count in SUMS.items():
        vector = strategy.experimental_distribute_values_from_function(lambda _, size=size: np.ones(size * 250_000, np.float32))
        found[f"{size} MB"] = timed(lambda v=vector: jax.block_until_ready(jax.tree.leaves(strategy.run(total, args=(v,)))), count)
    return found


def sums_of_torch() -> dict[str, float]:
    """Return the seconds of all-reduces of PyTorch's over gloo, in place."""
    torch: Any = importlib.import_module("torch")
    torch.distributed.init_process_group("gloo")
    found = {}
    for size, count in SUMS.items():
        vector = torch.ones(size * 250_000)
        found[f"{size} MB"] = timed(lambda v=vector: torch.distributed.all_reduce(v), count)
    torch.distributed.barrier()  # the others exchange over a store of the first process
    return found


def timed(compute: Any, count: int) -> float:
    """Return the median of the seconds that a call takes, after two others."""
    seconds = []
    for _ in range(count + 2):
        begin = time.perf_counter()
        compute()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[2:])


def measure(kind: Kind, name: str, source: str | None, python: str = sys.executable) -> Any:
    """Return the seconds of a contestant's step on two hosts. `source` holds another version of the package."""
    tests = Path(__file__).resolve().parents[1] / "tests"
    sys.path[:0] = [str(tests / "hosts"), str(tests / "processes")]
    _bench: Any = importlib.import_module("_bench")

    with tempfile.TemporaryDirectory() as text, _bench.Bench(2, Path(text) / "hosts", mtu=kind.mtu) as bench:
        for link in bench.links:
            link.delay, link.loss, link.rate = kind.delay, kind.loss, kind.rate
        job = Path(text) / "job"
        job.mkdir()
        environ = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "REPLICANT_COMPILATION_CACHE": "0", "JAX_NUM_PROCESSES": "2"}
        environ |= {"JAX_COORDINATOR_ADDRESS": f"{bench.hosts[0].address}:2222", "ANSWER": str(job / "answer")}
        environ |= {"PYTHONPATH": source} if source else {}
        environ |= {"MASTER_ADDR": bench.hosts[0].address, "MASTER_PORT": "2223", "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "eth0"}
        command = [python, __file__, "--contestant", name, "--steps", str(kind.steps)]
        workers = [
            host.start(command, job / f"{rank}.log", environ | {"JAX_PROCESS_ID": str(rank), "RANK": str(rank)})
            for rank, host in enumerate(bench.hosts)
        ]
        _bench.wait_until(
            lambda: all(worker.poll() is not None for worker in workers) or any(worker.poll() for worker in workers), SECONDS
        )
        if any(worker.poll() != 0 for worker in workers):
            raise SystemExit("\n".join((job / f"{rank}.log").read_text()[-2000:] for rank in range(2)))
        return json.loads((job / "answer").read_text())


def bound(kind: Kind) -> float:
    """Return the seconds that one exchange of the gradients takes at least."""
    num_bytes = 4 * sum((a + 1) * b for a, b in itertools.pairwise(WIDTHS))
    return kind.delay + (0.0 if kind.rate is None else 8 * num_bytes / kind.rate)


def compare_sums(rounds: int, torch: str) -> None:
    """Print the medians of all-reduces, by turns with PyTorch's."""
    found: dict[str, list[dict[str, float]]] = {"Replicant": [], "PyTorch, gloo": []}
    for _ in range(rounds):
        found["Replicant"].append(measure(Kind("1 ms", 0.001, mtu=LARGE_MTU), "sums", None))
        found["PyTorch, gloo"].append(measure(Kind("1 ms", 0.001, mtu=LARGE_MTU), "sums of torch", None, torch))
    for name, each in found.items():
        cells = [f"{size}: {1000 * statistics.median(row[size] for row in each):8.1f} ms" for size in each[0]]
        least = [f"{1000 * min(row[size] for row in each):.1f}" for size in each[0]]
        print(f"{name:<16} {'  '.join(cells)}   (least {', '.join(least)})", flush=True)


def main() -> None:
    """Measure, and print a row for each kind of link."""
    parser = argparse.ArgumentParser(description="Measure steps on slow links.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--source", help="the folder of another version of the package, to compare")
    parser.add_argument("--sums", action="store_true", help="measure all-reduces against PyTorch's")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with torch, for --sums")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        whole = {"sums": sums, "sums of torch": sums_of_torch}.get(options.contestant)
        seconds = contestant(options.contestant, options.steps) if whole is None else whole()
        if os.environ["JAX_PROCESS_ID"] == "0":
            Path(os.environ["ANSWER"]).write_text(json.dumps(seconds))
        if options.contestant == "sums of torch":
            os._exit(0)  # its threads sometimes abort an interpreter that ends normally
        return
    if options.sums:
        if not options.torch:
            parser.error("--sums needs --torch PYTHON")
        compare_sums(options.rounds, options.torch)
        return
    ways = [(name, None) for name in CONTESTANTS]
    ways += [(name, options.source) for name in CONTESTANTS] if options.source else []
    for kind in KINDS:
        found: dict[Any, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                found[way].append(measure(kind, *way))
        least = bound(kind)
        print(f"{kind.name}: at least {1000 * least:.1f} ms, {1 / least:.1f} steps/s", flush=True)
        for (name, source), seconds in found.items():
            median = statistics.median(seconds)
            title = f"{name}{' (the other version)' if source else ''}"
            share = f"{1000 * median:8.1f} ms  {1 / median:6.1f} steps/s  {least / median:5.2f} of the bound"
            print(f"  {title:<40} {share}  {median / kind.delay:5.1f} delays", flush=True)


if __name__ == "__main__":
    main()
