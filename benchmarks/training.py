"""Compares training with its peers: ``fit`` and a custom loop, on one and two virtual CPU devices, with equal global batches.

Each contender is a process of its own (``contenders/``) that begins with the same weights. Rounds alternate, and only one process
computes at a time. Peers other than JAX and Keras need a separate environment (``peers.txt``), and are skipped if they are absent.
Run: ``python benchmarks/training.py --peers-python /path/to/peers/bin/python [--minutes 12] [--rounds 15] [--cases cnn mlp]``.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _figures import machine, shown
from _rounds import alternate
from contenders._cases import CASES, Case

FIT, LOOP = "Replicant fit", "Replicant loop"


@dataclasses.dataclass(frozen=True)
class Peer:
    """How a contender is run. `needs` is the library that the peers' environment must have."""

    name: str
    script: str
    way: str
    needs: str | None = None
    max_replicas: int = 2


CONTENDERS = (
    Peer(FIT, "with_replicant.py", "fit"),
    Peer(LOOP, "with_replicant.py", "loop"),
    Peer("TensorFlow MirroredStrategy fit", "with_tensorflow.py", "fit", needs="tensorflow"),
    Peer("TensorFlow MirroredStrategy loop", "with_tensorflow.py", "loop", needs="tensorflow"),
    Peer("PyTorch", "with_torch.py", "loop", needs="torch"),  # DistributedDataParallel for several replicas
    Peer("stock Keras-JAX fit, one device", "with_keras_jax.py", "fit"),
    Peer("hand-written JAX", "with_jax.py", "loop"),
)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Training against peers.")
    parser.add_argument("--peers-python", help="the interpreter of the environment of peers.txt")
    parser.add_argument("--minutes", type=float, default=12, help="the time for everything (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="the most rounds (default: %(default)s)")
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--cases", nargs="*", choices=[*CASES], default=[*CASES])
    parser.add_argument("--deadline", type=float, default=180, help="the seconds for one answer (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def interpreters(python: str | None) -> dict[str | None, str]:
    """Return the interpreter for contenders that need a library, or None. Print a line for each library that is absent."""
    found: dict[str | None, str] = {None: sys.executable}
    for library in ("tensorflow", "torch"):
        reason = "no --peers-python"
        if python:
            code = f"import sys, importlib.util; sys.exit(importlib.util.find_spec({library!r}) is None)"
            if subprocess.run([python, "-c", code], timeout=60, check=False).returncode == 0:
                found[library] = python
                continue
            reason = f"not installed for {python}"
        print(f"{library}: {reason}: skipped", flush=True)
    return found


def measure(case: Case, replicas: int, pythons: dict[str | None, str], args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Measure all contenders of one case."""
    commands = {
        peer.name: (pythons[peer.needs], peer.script, [case.name, "--way", peer.way, "--replicas", str(replicas)])
        for peer in CONTENDERS
        if peer.needs in pythons
    }
    found = alternate(commands, rounds=args.rounds, seconds=seconds, deadline=args.deadline)
    contenders = {name: dataclasses.asdict(measured) for name, measured in found.items()}
    return {"case": case.name, "replicas": replicas, "batch": case.batch, "steps": case.steps, "contenders": contenders}


def table(result: dict[str, Any]) -> str:
    """Format one case as Markdown. A ratio says how many times as fast as the contender Replicant is (median of paired rounds)."""
    case, contenders = CASES[result["case"]], result["contenders"]
    seconds = {name: found["seconds"] for name, found in contenders.items()}
    rounds = max(map(len, seconds.values()), default=0)
    devices = "one device" if result["replicas"] == 1 else f"{result['replicas']} virtual devices"
    lines = [
        f"**{case.title}**, {devices}, global batch {result['batch']}, {rounds} rounds of {result['steps']} steps",
        "",
        "| | ms/step | least | examples/s | processor ms/step | fit is x times as fast | loop is x times as fast | first loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in contenders.items():
        if found["failed"]:
            lines.append(f"| {name} | failed: {found['failed']} | | | | | | |")
            continue
        milliseconds = [x / result["steps"] * 1e3 for x in found["seconds"]]
        middle = statistics.median(milliseconds)
        cells = [
            name,
            f"{middle:.3g}",
            f"{min(milliseconds):.3g}",
            f"{result['batch'] / middle * 1e3:,.0f}",
            f"{statistics.median(found['processor']) / result['steps'] * 1e3:.3g}",
            *(shown(found["seconds"], seconds[own]) if name not in (FIT, LOOP) else "" for own in (FIT, LOOP)),
            f"{found['first_loss']:.4f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print the tables."""
    args = parse()
    facts, start = machine(), time.monotonic()
    print(f"{Path(__file__).name}: {facts}", flush=True)
    pythons = interpreters(args.peers_python)
    todo = [(CASES[name], replicas) for name in args.cases for replicas in args.replicas]
    results = []
    for i, (case, replicas) in enumerate(todo):
        left = 60 * args.minutes - (time.monotonic() - start)
        results.append(measure(case, replicas, pythons, args, left / (len(todo) - i)))
        print(f"\n{table(results[-1])}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, "results": results}))


if __name__ == "__main__":
    main()
