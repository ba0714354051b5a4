"""Prints what ``replicant plan`` predicts of a step and of its memory, and what a run takes."""

import statistics
import sys
import time
from typing import Any

import _cases_here as here

ROUNDS = 2 if here.DRY else 6


def target() -> str:
    """Return the topology of this machine's device."""
    from _figures import gpu

    name = (gpu() or "").lower()
    found = next((chip for chip in ("h200", "h100", "a100") if chip in name), None)
    if found is None and not here.DRY:
        sys.exit(f"predictions: no figures for {name!r} (there are some for A100, H100, H200)")
    return "cpu:1" if here.DRY else f"gpu:1x{found}"


def measured(train: Any, steps: int) -> float:
    """Return the seconds of a step, after two rounds to warm up."""
    times = []
    for _ in range(2 + ROUNDS):
        began = time.perf_counter()
        train()
        times.append((time.perf_counter() - began) / steps)
    return statistics.median(times[2:])


def main() -> None:
    """Plan the loop of each model, and run it."""
    loop = here.contender().make
    import replicant

    print(
        "| loop | plan, ms | run, ms | error | plan, MB | peak of the process, MB |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for name in ("cnn_bf16", "gpt2"):  # the peak of a process only grows: the smaller one comes first
        args = here.arguments(name)
        plan = replicant.plan.make_plan(lambda args=args: loop(args)(), target())
        seconds = measured(loop(args), args.steps)
        memory = f"{peak / 1e6:,.0f}" if (peak := here.peak()) else "the device does not tell"
        times = [f"{plan.seconds * 1e3:.3g}", f"{seconds * 1e3:.3g}", f"{plan.seconds / seconds - 1:+.0%}"]
        cells = [name, *times, f"{plan.bytes_per_device / 1e6:,.0f}", memory]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
