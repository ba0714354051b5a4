"""Prints the seconds from the start of a process to its first finished step, and what compiling takes, with empty caches.

Each contender is alone on the GPU and has caches of its own, so that none profits from what another has compiled.
"""

import argparse
import os
import sys
import tempfile
import time

from _parts import BENCHMARKS, MODELS

sys.path.append(str(BENCHMARKS))

from _rounds import Contender, ContenderError, exit_when_terminated

SECONDS = 60.0  # for one answer


def measure(python: str, script: str, options: list[str]) -> tuple[float, float]:
    """Return the seconds to the first step, and by how much the first call took longer than the third."""
    with tempfile.TemporaryDirectory() as cache:
        names = ("REPLICANT_COMPILATION_CACHE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
        running = Contender(python, script, options, dict.fromkeys(names, cache))
        try:
            first = running.answer(SECONDS)
            seconds = time.perf_counter() - running.started
            later = []
            for _ in range(2):
                running.go()
                later.append(running.answer(SECONDS)["seconds"])
            return seconds, first["seconds"] - later[-1]
        finally:
            running.stop()


def main() -> int:
    """Print a row at a time, so that a deadline leaves those that were measured. Return 1 if a contender failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers-python", default=sys.executable)
    options, failed = parser.parse_args(), 0
    exit_when_terminated()
    contenders = {
        "hand-written JAX": (sys.executable, "with_jax.py", []),
        "Replicant loop": (sys.executable, "with_replicant.py", ["--way", "loop"]),
        "Replicant fit": (sys.executable, "with_replicant.py", ["--way", "fit"]),
        "torch.compile": (options.peers_python, "with_torch.py", ["--compiled"]),
    }
    print("| model | contender | start to first step, s | first call - later call (compiling), s |\n|---|---|---|---|", flush=True)
    for model in MODELS[:1] if os.environ.get("BENCHMARK_DRY") else MODELS:
        for name, (python, script, ways) in contenders.items():
            try:
                start, compiling = measure(python, script, [model, "--steps", "1", *ways])
                print(f"| {model} | {name} | {start:.1f} | {compiling:.1f} |", flush=True)
            except ContenderError as error:
                failed = 1
                print(f"| {model} | {name} | failed: {error} | |", flush=True)
                print(f"{model}, {name}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
