"""Tells what other guests of a virtual machine's host take from it: whole processors, or the cache that all of them share.

**Processors.** In a virtual machine, two processors may be the two threads of one core. A process on each of them multiplies
matrices for some hundredths of a second, first by itself and then with all others. If each has a core, all of them together are as
many times as fast as one. If two share a core, they are not, and whatever is measured meanwhile takes up to twice as long. This can
change within seconds, where a host moves its guests from core to core.

**The cache** (``--cache``, needs numba). A loop follows addresses through a few megabytes that it has just read, and each one must
wait for the one before. If they are still in the cache that all processors share, an address takes some ten to thirty nanoseconds.
If other guests take that cache, they come from memory, and take several times as long. Then operations that pass over arrays take
up to three times as long, and products of matrices hardly longer.

The machine must be at rest, or else other programs look the same. Run: ``python benchmarks/processors.py [--seconds 30]
[--cache]``.
"""

import argparse
import importlib.util
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
CACHED, TAKEN = 4 << 20, 2.5  # more bytes than one processor's own caches hold


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


def latencies(seconds: float) -> list[float]:
    """Sample for a while how many nanoseconds an address takes that was read a moment ago, among CACHED bytes."""
    numba = importlib.import_module("numba")

    @numba.njit
    def follow(lines: Any) -> Any:
        place = 0
        for _ in range(lines.size // 8):
            place = lines[place]
        return place

    order = np.random.default_rng(0).permutation(CACHED // 64)
    lines = np.zeros(CACHED // 8, np.int64)  # eight numbers for each line of the cache
    lines[8 * order] = 8 * np.roll(order, -1)
    end, found = time.monotonic() + seconds, list[float]()
    follow(lines)  # is compiled
    while time.monotonic() < end:
        follow(lines)  # reads them
        start = time.perf_counter()
        follow(lines)
        found.append(1e9 * (time.perf_counter() - start) / len(order))
        time.sleep(BURST)
    return found


def report_cache(seconds: float) -> None:
    """Print how long addresses take, and how often others took the cache."""
    found = sorted(latencies(seconds))
    taken = sum(each > TAKEN * found[0] for each in found)
    print(f"an address among {CACHED >> 20} MB takes {found[0]:.0f} to {found[-1]:.0f} ns, median {statistics.median(found):.0f}")
    print(f"more than {TAKEN:g} times the least: {taken} of {len(found)} samples, {100 * taken / len(found):.0f} %")


def main() -> None:
    """Sample for a while, and print how often processors shared a core, or others took the cache."""
    parser = argparse.ArgumentParser(description="Do processors share cores, and do others take the cache?")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--cache", action="store_true", help="the cache instead of the processors")
    args = parser.parse_args()
    if args.seconds <= 0:
        parser.error(f"--seconds must be more than 0; got {args.seconds:g}")
    if args.cache and importlib.util.find_spec("numba") is None:
        parser.error("--cache needs numba: pip install numba")
    if args.cache:
        report_cache(args.seconds)
        return
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
