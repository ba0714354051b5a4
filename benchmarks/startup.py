"""Measures the seconds from the start of a process to its first finished training step, with ``fit`` and the CNN of the guides.

The contenders are Replicant with an empty cache of compiled programs, Replicant with the cache of an earlier run, and stock Keras
on JAX. Their starts alternate, and nothing else computes. Then the processor seconds of ``import jax`` and ``import replicant`` are
measured. Python keeps the byte code of all modules, as it does after an installation, even where PYTHONDONTWRITEBYTECODE is set.
Run: ``python benchmarks/startup.py [--rounds 7]``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _figures import machine, shown
from _rounds import Contender

FIRST, CACHED, STOCK = "Replicant fit, first run", "Replicant fit, cached run", "stock Keras-JAX fit"
LOOP = "Replicant loop, cached run"
BYTE_CODE = {"PYTHONDONTWRITEBYTECODE": ""}  # empty is as good as not set
SCRIPTS = {
    FIRST: ("with_replicant.py", "fit"),
    CACHED: ("with_replicant.py", "fit"),
    LOOP: ("with_replicant.py", "loop"),
    STOCK: ("with_keras_jax.py", "fit"),
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time to the first step.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--deadline", type=float, default=120, help="the seconds for one start (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def start(name: str, cache: str, deadline: float) -> float:
    """Return the seconds to the first step of one process."""
    script, way = SCRIPTS[name]
    environment = {"REPLICANT_COMPILATION_CACHE": cache, **BYTE_CODE}
    contender = Contender(sys.executable, script, ["cnn", "--way", way, "--steps", "1"], environment)
    try:
        contender.answer(deadline)
        return time.perf_counter() - contender.started
    finally:
        contender.stop()


def seconds_to_import(module: str, deadline: float) -> float:
    """Return the processor seconds of an import in a fresh process."""
    program = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
    environment = {**os.environ, **BYTE_CODE}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=deadline, check=True
    )
    return float(done.stdout)


def table(result: dict[str, Any]) -> str:
    """Format the figures as Markdown."""
    seconds = result["seconds"]
    lines = ["| start to first step | seconds | least | time / stock Keras-JAX |", "|---|---|---|---|"]
    for name, found in seconds.items():
        lines.append(f"| {name} | {statistics.median(found):.2f} | {min(found):.2f} | {shown(found, seconds[STOCK])} |")
    least = {module: min(found) for module, found in result["imports"].items()}
    lines += ["", "Processor time, least: " + ", ".join(f"`import {module}` {took:.2f} s" for module, took in least.items())]
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the table."""
    args, facts = parse(), machine()
    print(f"{Path(__file__).name}: {facts}", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    with tempfile.TemporaryDirectory() as kept:
        for name in (FIRST, LOOP, STOCK):  # reads all libraries' files once, and compiles the loop's programs
            start(name, kept, args.deadline)
        for _ in range(args.rounds):
            for name, found in seconds.items():
                with tempfile.TemporaryDirectory() as empty:
                    found.append(start(name, empty if name == FIRST else kept, args.deadline))
    imports: dict[str, list[float]] = {"jax": [], "replicant": []}
    for _ in range(args.rounds):
        for module, took in imports.items():
            took.append(seconds_to_import(module, args.deadline))
    result = {"machine": facts, "seconds": seconds, "imports": imports}
    print(f"\n{table(result)}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
