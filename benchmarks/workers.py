"""Compares two worker processes with two devices of one process, and with PyTorch's DistributedDataParallel over gloo.

Every contestant trains the same MLP (784-256-256-10, SGD, a global batch of 128), and then sums vectors of 1, 10 and 100 MB over
two replicas. In each round, every contestant runs once, in processes of its own. The medians of the rounds are printed, with their
ratios to two workers. Run: ``python benchmarks/workers.py [--rounds 3] [--torch PYTHON]``, where PYTHON is an interpreter with
torch.
"""

import argparse
import importlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

MEGABYTES = (1, 10, 100)
BATCH, WIDTHS, STEPS, WARM_UP = 128, (784, 256, 256, 10), 300, 30
SECONDS = 600.0  # for one contestant


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare two workers with two devices, and with torch DDP.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", "--torch", metavar="PYTHON", help="an interpreter with torch, which is left out otherwise")
    parser.add_argument("--max-megabytes", type=int, default=100)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    return parser.parse_args()


def with_replicant(kind: str, max_megabytes: int) -> dict[str, float]:
    """Return the milliseconds of a step and of sums."""
    import replicant

    if kind != "workers":
        replicant.set_virtual_devices(2)
        strategy: Any = replicant.MirroredStrategy(fuse_replicas=kind == "fused")
    else:
        strategy = replicant.MultiWorkerMirroredStrategy()
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    shapes = [shape for a, b in itertools.pairwise(WIDTHS) for shape in ((a, b), (b,))]
    with strategy.scope():
        variables = [replicant.Variable(rng.normal(size=shape).astype(np.float32) * 0.05) for shape in shapes]

    def train_step(x: Any, y: Any) -> Any:
        with replicant.GradientTape() as tape:
            for weight, bias in zip(variables[::2], variables[1::2], strict=True):
                x = x @ weight.value() + bias.value()
                x = x if weight is variables[-2] else jax.nn.relu(x)
            loss = -jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], 1)) / BATCH
        context: Any = replicant.get_replica_context()
        gradients = context.all_reduce("SUM", tape.gradient(loss, variables))
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    rows = rng.normal(size=(BATCH, WIDTHS[0])).astype(np.float32), rng.integers(0, 10, BATCH).astype(np.int32)
    (batch,) = strategy.experimental_distribute_dataset(replicant.data.Dataset.from_tensor_slices(rows).batch(BATCH))
    wait: Callable[[Any], Any] = lambda result: jax.block_until_ready(jax.tree.leaves(result))  # noqa: E731 - a def would not have its type
    found = {"step": timed(lambda: strategy.run(train_step, args=batch), wait, STEPS, WARM_UP)}
    for megabytes in [size for size in MEGABYTES if size <= max_megabytes]:
        vector = strategy.experimental_distribute_values_from_function(
            lambda context, size=megabytes: np.ones(size * 250_000, np.float32) * context.replica_id_in_sync_group
        )

        def total(x: Any) -> Any:
            context: Any = replicant.get_replica_context()
            return context.all_reduce("SUM", x)

        found[f"{megabytes} MB"] = timed(lambda v=vector: wait(strategy.run(total, args=(v,))), wait, 20, 3)
    return found


def with_torch(max_megabytes: int) -> dict[str, float]:
    """Return the milliseconds of a step and of sums."""
    torch: Any = importlib.import_module("torch")

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    layers: list[Any] = []
    for a, b in itertools.pairwise(WIDTHS):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(rank)
    x, y = torch.randn(BATCH // 2, WIDTHS[0], generator=generator), torch.randint(0, 10, (BATCH // 2,), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    found = {"step": timed(step, lambda _: None, STEPS, WARM_UP)}
    for megabytes in [size for size in MEGABYTES if size <= max_megabytes]:
        vector = torch.ones(megabytes * 250_000)
        found[f"{megabytes} MB"] = timed(lambda v=vector: torch.distributed.all_reduce(v), lambda _: None, 20, 3)
    torch.distributed.barrier()  # the others exchange over a store of the first process
    return found


def timed(step: Callable[[], Any], wait: Callable[[Any], Any], num_steps: int, warm_up: int) -> float:
    """Return the milliseconds per step of many steps that are started one after the other."""
    result = None
    for _ in range(warm_up):
        result = step()
    wait(result)
    start = time.perf_counter()
    for _ in range(num_steps):
        result = step()
    wait(result)
    return 1000 * (time.perf_counter() - start) / num_steps


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Start a contestant's processes, and read what the first one prints."""
    arguments = [__file__, "--contestant", name, "--max-megabytes", str(options.max_megabytes)]
    environ = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    if name == "torch":
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
        environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        commands = [([options.peers, *arguments], environ | {"RANK": str(rank)}) for rank in range(2)]
    elif name == "workers":
        commands = [([sys.executable, "-m", "replicant", "launch", "--workers", "2", *arguments], environ)]
    else:
        commands = [([sys.executable, *arguments], environ)]
    started = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for command, env in commands]
    try:
        answers = [process.communicate(timeout=SECONDS)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        raise SystemExit(f"{name} failed")
    return next(json.loads(line[line.index("{") :]) for line in answers[0].splitlines() if line.startswith(("{", "[0] {")))


def main() -> None:
    """Measure, and print the table."""
    options = parse()
    if options.contestant:
        kind = options.contestant
        found = with_torch(options.max_megabytes) if kind == "torch" else with_replicant(kind, options.max_megabytes)
        print(json.dumps(found), flush=True)
        if kind == "torch":
            os._exit(0)  # its threads sometimes abort an interpreter that ends normally
        return
    names = {"workers": "2 workers x 1 device", "apart": "1 process x 2 devices, apart", "fused": "1 process x 2 devices, fused"}
    if options.peers:
        names["torch"] = "2 workers, torch DDP gloo"
    rounds = [{name: measure(name, options) for name in names} for _ in range(options.rounds)]
    columns = ["step", *[f"{size} MB" for size in MEGABYTES if size <= options.max_megabytes]]
    medians = {name: {c: statistics.median(each[name][c] for each in rounds) for c in columns} for name in names}
    print(f"{'median of ' + str(options.rounds) + ' rounds, ms':<30} " + " ".join(f"{c:>16}" for c in columns))
    for name, title in names.items():
        cells = [f"{medians[name][c]:8.2f} ({medians[name][c] / medians['workers'][c]:4.2f}x)" for c in columns]
        print(f"{title:<30} " + " ".join(f"{cell:>16}" for cell in cells))


if __name__ == "__main__":
    main()
