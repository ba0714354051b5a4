"""The models of benchmarks/parameter_server.py for all contenders: two dense layers, or two embeddings and a tower."""

import argparse
from typing import NamedTuple

import numpy as np

BATCH = 32
ROWS, WIDTH, LOOKUPS = 500_000, 32, 128
SERVERS = WORKERS = 2
RATE = 0.01


class Case(NamedTuple):
    """The sizes of the layers, and the number of steps of a round."""

    sizes: tuple[int, int, int]
    steps: int
    embeddings: bool = False


CASES = {
    "small": Case((128, 160, 32), 6000),
    "large": Case((1024, 6400, 1024), 150),
    "embedding": Case((2 * WIDTH, 64, 1), 5000, embeddings=True),
}


def parse() -> argparse.Namespace:
    """Read the command line of a contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that worker 0 sleeps in each step")
    parser.add_argument("--deadline", type=float, default=300)
    args = parser.parse_args()
    args.case = CASES[args.case]
    args.steps = args.steps or args.case.steps
    return args


def batch(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Make inputs (ids of both tables, or features) and targets."""
    rng = np.random.default_rng(0)
    if case.embeddings:
        return rng.integers(0, ROWS, (LOOKUPS, 2)).astype("int32"), rng.normal(size=(LOOKUPS, 1)).astype("f4")
    return rng.normal(size=(BATCH, case.sizes[0])).astype("f4"), rng.normal(size=(BATCH, case.sizes[2])).astype("f4")
