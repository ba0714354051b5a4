"""Rates of single products of matrices, whose operands lie in the cache or come from memory, as they do in training.

Ways to compute them: XLA's own, with the kernel `dot`, and with `numba_dot` as well, which is the default where numba is installed.
The operands are drawn from so many arrays that no cache holds them (`--megabytes`), and then are always the same ones. Each call is
waited for. The ways take turns, array by array. Printed are medians in GFLOP/s. Gradients of weights are turned, as JAX does.

PyTorch's rates: run it with the interpreter of an environment that has PyTorch, with ``--torch``. Run: ``python
benchmarks/products.py [--rounds 6] [--megabytes 96]``.
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PRODUCTS = [  # rows, summed, columns
    ("x @ w", 4096, 128, 128),
    ("x @ w", 4096, 128, 512),
    ("x @ w", 4096, 512, 128),
    ("x @ w", 1024, 192, 768),
    ("x @ w", 1024, 768, 192),
    ("x @ w.T", 4096, 512, 128),
    ("x @ w.T", 1024, 768, 192),
    ("x.T @ y", 128, 4096, 512),
    ("x.T @ y", 512, 4096, 128),
    ("x.T @ y", 192, 1024, 768),
]
Product = Callable[[Any, Any], Any]


def shapes(kind: str, rows: int, summed: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The shapes of both operands."""
    lhs = (summed, rows) if kind == "x.T @ y" else (rows, summed)
    return lhs, (columns, summed) if kind == "x @ w.T" else (summed, columns)


def with_jax(kind: str, lhs: Any, rhs: Any) -> dict[str, Product]:
    """Compile a product in three ways."""
    jax, kernels = importlib.import_module("jax"), importlib.import_module("replicant").kernels
    sums = {"x @ w": ((1,), (0,)), "x @ w.T": ((1,), (1,)), "x.T @ y": ((0,), (0,))}[kind]

    def product(x: Any, y: Any) -> Any:
        result = jax.lax.dot_general(x, y, (sums, ((), ())))
        return result.T if kind == "x.T @ y" else result

    compiled = {}
    for way, off in (("XLA", ("dot", "numba_dot")), ("dot", ("numba_dot",)), ("numba_dot", ())):
        with kernels.disabled("attention", *off):  # which is not part of a product, and without a name all would be off
            compiled[way] = jax.jit(product).lower(lhs, rhs).compile()
    return {way: lambda x, y, program=program: program(x, y).block_until_ready() for way, program in compiled.items()}


def with_torch(kind: str, *_: Any) -> dict[str, Product]:
    """The product as PyTorch computes it, in an array that is there already."""
    torch, found = importlib.import_module("torch"), {}

    def product(x: Any, y: Any) -> Any:
        x, y = x.T if kind == "x.T @ y" else x, y.T if kind == "x @ w.T" else y
        shape = (x.shape[0], y.shape[1])
        return torch.mm(x, y, out=found.setdefault(shape, torch.empty(shape)))

    return {"PyTorch": product}


def rates(args: argparse.Namespace, product: tuple[str, int, int, int]) -> dict[str, list[float]]:
    """The median rates of each way in GFLOP/s, with operands from memory and from the cache."""
    kind, *sizes = product
    place = importlib.import_module("torch").from_numpy if args.torch else importlib.import_module("jax").device_put
    rng = np.random.default_rng(0)
    count = max(2, int(args.megabytes * 1e6 / 4 / sum(map(np.prod, shapes(kind, *sizes)))))
    operands = [[place(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes(kind, *sizes)] for _ in range(count)]
    ways = (with_torch if args.torch else with_jax)(kind, *operands[0])
    found: dict[str, list[float]] = {way: [] for way in ways}
    for drawn in (operands, operands[:1] * count):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for way, compute in [*ways.items()] * args.rounds:
            compute(*drawn[-1])
            for lhs, rhs in drawn:
                start = time.perf_counter()
                compute(lhs, rhs)
                times[way].append(time.perf_counter() - start)
        for way, seconds in times.items():
            found[way].append(2e-9 * float(np.prod(sizes)) / statistics.median(seconds))
    return found


def main() -> None:
    """Measure all products."""
    parser = argparse.ArgumentParser(description="Rates of products of matrices.")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--megabytes", type=float, default=96)
    parser.add_argument("--torch", action="store_true", help="PyTorch's rates, instead of those of this package")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: there must be one or more")
    head = None
    for product in PRODUCTS:
        found = rates(args, product)
        if head is None:
            head = [f"{way}, {where}" for way in found for where in ("from memory", "in the cache")]
            print("| | " + " | ".join(head) + " |\n|---" + "|---" * len(head) + "|")
        cells = [f"{rate:.0f}" for both in found.values() for rate in both]
        print(f"| {product[0]}: {', '.join(map(str, product[1:]))} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
