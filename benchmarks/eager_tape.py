"""Measures what a GradientTape costs outside of ``run`` and ``function``, per operation.

A chain of small operations is differentiated in three ways: by a tape whose operations run at once, by ``jax.grad`` outside of
``jax.jit``, and by a tape in a ``replicant.function``. The gradients are compared first. Then rounds alternate, and the medians
are printed. Run: ``python benchmarks/eager_tape.py [--operations 20] [--rounds 30]``.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp

import replicant


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Compare the cost of an operation under an eager tape with jax.grad and traced code."
    )
    parser.add_argument("--operations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--size", type=int, default=16, help="rows and columns of the matrices")
    return parser.parse_args()


def contenders(num_operations: int) -> dict[str, Callable[[Any], Any]]:
    """Return the three ways to compute the gradient of one chain."""

    def chain(x: Any) -> Any:
        for i in range(num_operations - 1):
            x = jnp.matmul(x, x) if i % 4 == 2 else (jnp.sin, jnp.tanh, jnp.sin, jnp.cos)[i % 4](x)
        return jnp.sum(x)

    def taped(x: Any) -> Any:
        with replicant.GradientTape() as tape:
            y = chain(x)
        return tape.gradient(y, x)

    return {"eager tape": taped, "jax.grad outside of jit": jax.grad(chain), "tape in a function": replicant.function(taped)}


def measure(ways: dict[str, Callable[[Any], Any]], x: Any, rounds: int) -> dict[str, float]:
    """Return each way's median seconds for one gradient."""
    found = {name: jax.block_until_ready(fn(x)) for name, fn in ways.items()}
    first = next(iter(found.values()))
    for name, gradient in found.items():
        if not jnp.allclose(gradient, first, rtol=1e-4, atol=1e-6):
            sys.exit(f"{name} gives another gradient than the eager tape, so they cannot be compared")
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, fn in ways.items():
            start = time.perf_counter()
            jax.block_until_ready(fn(x))
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    """Measure, and print the table."""
    args = parse()
    x = jnp.linspace(0.0, 1.0, args.size**2).reshape(args.size, args.size) / args.size
    medians = measure(contenders(args.operations), x, args.rounds)
    print(f"{Path(__file__).name}: {args.operations} operations, {os.cpu_count()} cores, medians of {args.rounds} rounds")
    print("| way | us per operation, forward and backward | against jax.grad outside of jit |")
    print("|---|---|---|")
    for name, seconds in medians.items():
        print(f"| {name} | {seconds / args.operations * 1e6:.1f} | {seconds / medians['jax.grad outside of jit']:.2f} |")


if __name__ == "__main__":
    main()
