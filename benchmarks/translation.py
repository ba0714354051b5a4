"""How long the first program on a new machine waits for the CPU kernels that numba compiles, function by function.

Two ways: as Replicant does it (numba translates, and LLVM optimizes all functions as one module), and as numba does it by itself.
Each function is made in a process of its own, which finds nothing that an earlier one has kept; the ways take turns. Printed are
seconds of processor time without the imports: medians, least and most. Run: ``python benchmarks/translation.py [--rounds 3]``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

FUNCTIONS = ("compiled._convolutions", "compiled._dot", "compiled._lstm_loops", "functions._norm")
CHILD = """
import importlib, json, sys, time
import numba
import replicant
from replicant.kernels.compiled import _registration, _translation
if sys.argv[2] == "numba":
    _translation.translated = lambda handle: None
module = importlib.import_module("replicant.kernels." + sys.argv[1])
function = next(value for value in vars(module).values() if isinstance(value, _registration.Native))
start = time.process_time()
assert function.is_ready(), function.objection()
print(json.dumps([function.family, time.process_time() - start]))
"""


def seconds_of(module: str, way: str) -> tuple[str, float]:
    """The kernel that a module's function belongs to, and the seconds in which it is made."""
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"PYTHONPYCACHEPREFIX": folder, "XDG_CACHE_HOME": folder, "KERAS_BACKEND": "jax"}
        done = subprocess.run(
            [sys.executable, "-c", CHILD, module, way], env=environ, capture_output=True, text=True, timeout=300, check=True
        )
    return tuple(json.loads(done.stdout))


def main() -> None:
    """Measure both ways, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    times: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for module in FUNCTIONS:
            for way in ("numba", "once"):
                family, seconds = seconds_of(module, way)
                times.setdefault(family, {}).setdefault(way, []).append(seconds)
    print("| function of | numba alone, s | translated and optimized as one, s | ratio |\n|---|---|---|---|")
    for family, ways in times.items():
        numba, once = (statistics.median(ways[way]) for way in ("numba", "once"))
        ranges = (f"{statistics.median(ways[way]):.1f} ({min(ways[way]):.1f} to {max(ways[way]):.1f})" for way in ("numba", "once"))
        print(f"| `{family}` | {' | '.join(ranges)} | {once / numba:.2f} |")


if __name__ == "__main__":
    main()
