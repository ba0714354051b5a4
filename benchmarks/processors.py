"""Tells whether processors compute side by side: in a virtual machine, two of them may be the two threads of one core.

A process on each processor multiplies matrices for some hundredths of a second, first by itself and then with all others. If each
has a core, all of them together are as many times as fast as one. If two share a core, they are not, and whatever is measured
meanwhile takes up to twice as long. This can change within seconds, where a host moves its guests from core to core. The machine
must be at rest, or else other programs look the same. Run: ``python benchmarks/processors.py [--seconds 30]``.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import numpy as np

SIDE, BURST = 384, 0.04
SHARED = 0.75  # of what the processors have one by one
DEADLINE = 30


def multiply(processor: int, pipe: Any, barrier: Any) -> None:
    """Multiply on one processor whenever the pipe says so, alone or with the others, and answer with the GFLOP/s."""
    os.sched_setaffinity(0, {processor})
    x = np.ones((SIDE, SIDE), np.float32)
    out = np.empty_like(x)
    while (together := pipe.recv()) is not None:
        if together:
            barrier.wait(DEADLINE)
        count, start = 0, time.perf_counter()
        while (now := time.perf_counter()) < start + BURST:
            np.dot(x, x, out=out)
            count += 1
        pipe.send(2e-9 * count * SIDE**3 / (now - start))


def answer(processor: int, pipe: Any) -> float:
    """One answer. Raises TimeoutError if it does not come."""
    if not pipe.poll(DEADLINE):
        raise TimeoutError(f"the process on processor {processor} did not answer for {DEADLINE} seconds")
    return pipe.recv()


def sample(pipes: dict[int, Any]) -> tuple[float, float]:
    """The GFLOP/s of all processors, the sum of those one by one and together."""
    alone = 0.0
    for processor, pipe in pipes.items():
        pipe.send(False)
        alone += answer(processor, pipe)
    for pipe in pipes.values():
        pipe.send(True)
    return alone, sum(answer(processor, pipe) for processor, pipe in pipes.items())


def main() -> None:
    """Sample for a while, and print how often processors shared a core."""
    parser = argparse.ArgumentParser(description="Do processors share cores?")
    parser.add_argument("--seconds", type=float, default=30)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    processors = sorted(os.sched_getaffinity(0))
    barrier, pipes = context.Barrier(len(processors)), {}
    for processor in processors:
        pipes[processor], theirs = context.Pipe()
        context.Process(target=multiply, args=(processor, theirs, barrier), daemon=True).start()
    sample(pipes)  # the processes start
    end = time.monotonic() + args.seconds
    found = [sample(pipes)]
    while time.monotonic() < end:
        time.sleep(BURST)
        found.append(sample(pipes))
    for pipe in pipes.values():
        pipe.send(None)
    ratios = [together / alone for alone, together in found]
    shared = sum(ratio < SHARED for ratio in ratios)
    print(f"{len(processors)} processors, {statistics.median(alone for alone, _ in found):.0f} GFLOP/s one by one")
    print(f"together {min(ratios):.2f} to {max(ratios):.2f} of that, median {statistics.median(ratios):.2f}")
    print(f"below {SHARED:g}, so that some share a core: {shared} of {len(ratios)} samples, {100 * shared / len(ratios):.0f} %")


if __name__ == "__main__":
    main()
