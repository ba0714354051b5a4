"""Compares training with its peers: ``fit`` and a custom loop, on one and two virtual CPU devices, with equal global batches.

Cases of a GPU are measured only if they are named (``--models cnn_bf16,resnet50,gpt2``), on one NVIDIA GPU. Contenders that use JAX
share the kernels that XLA has chosen by timing, and take equal parts of the GPU's memory (``--gpu-memory``).

Each contender is a process of its own (``contenders/``) that begins with the same weights. Rounds alternate, and only one process
computes at a time. Peers other than JAX and Keras need a separate environment (``peers.txt``), and are skipped if they are absent.
Run: ``python benchmarks/training.py --peers-python /path/to/peers/bin/python [--minutes 90] [--rounds 15] [--models cnn,mlp]``.
"""

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from _figures import gpu, machine, shown
from _rounds import alternate
from contenders._cases import ALL_CASES, CASES, GPU_CASES, Case

FIT, LOOP = "Replicant fit", "Replicant loop"
LEAST_ROUNDS = 3
_WARM_UP = 2  # rounds that do not count


@dataclasses.dataclass(frozen=True)
class Peer:
    """How a contender is run.

    Args:
        name: Its name in tables.
        script: Its file in the folder of contenders.
        way: Whether it runs ``fit`` or a loop.
        needs: The library that the peers' environment must have.
        compiled: Whether it runs with ``torch.compile`` or ``jit_compile=True``. Most cases leave these contenders out.
        start: The seconds until its first round is over, roughly, for the estimate of the time.
    """

    name: str
    script: str
    way: str
    needs: str | None = None
    compiled: bool = False
    start: float = 15


CONTENDERS = (
    Peer(FIT, "with_replicant.py", "fit"),
    Peer(LOOP, "with_replicant.py", "loop"),
    Peer("TensorFlow MirroredStrategy fit", "with_tensorflow.py", "fit", "tensorflow"),
    Peer("TensorFlow MirroredStrategy fit, jit_compile", "with_tensorflow.py", "fit", "tensorflow", compiled=True, start=25),
    Peer("TensorFlow MirroredStrategy loop", "with_tensorflow.py", "loop", "tensorflow"),
    Peer("TensorFlow MirroredStrategy loop, jit_compile", "with_tensorflow.py", "loop", "tensorflow", compiled=True, start=25),
    Peer("PyTorch", "with_torch.py", "loop", "torch", start=10),  # DistributedDataParallel for several replicas
    Peer("PyTorch, torch.compile", "with_torch.py", "loop", "torch", compiled=True, start=60),
    Peer("stock Keras-JAX fit, one device", "with_keras_jax.py", "fit"),
    Peer("hand-written JAX", "with_jax.py", "loop"),
)


def listed(names: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated names, for an option that takes one or several such lists."""

    def parsed(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        if unknown := [name for name in found if name not in names]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)} (choose from {', '.join(names)})")
        return found

    return parsed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose what is measured, which ``run.py`` has, too."""
    names = f"some of {','.join(CASES)}; on one GPU: {','.join(GPU_CASES)}"
    parser.add_argument("--models", nargs="*", type=listed(ALL_CASES), help=names)
    parser.add_argument("--replicas", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--all-contenders", action="store_true", help="torch.compile and jit_compile for all models")
    parser.add_argument("--contenders", nargs="*", metavar="PART", help="only those whose names contain one of these")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Training against peers.")
    parser.add_argument("--peers-python", help="the interpreter of the environment of peers.txt")
    parser.add_argument("--minutes", type=float, default=90, help="the time for everything (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="the most rounds (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="the steps of a round (default: those of the model)")
    add_options(parser)
    memory = "the share of a GPU's memory for all contenders with JAX (default: %(default)s)"
    parser.add_argument("--gpu-memory", type=float, default=0.6, help=memory)
    parser.add_argument("--deadline", type=float, default=300, help="the seconds for one answer (default: %(default)s)")
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


def chosen(case: Case, libraries: Collection[str | None], args: argparse.Namespace) -> list[Peer]:
    """Return the contenders of a case."""
    return [
        peer
        for peer in CONTENDERS
        if peer.needs in libraries
        and (not peer.compiled or case.all_contenders or args.all_contenders)
        and (args.contenders is None or any(part.lower() in peer.name.lower() for part in args.contenders))
    ]


def estimate(case: Case, peers: Collection[Peer], rounds: int, steps: int | None = None) -> float:
    """Return the seconds that so many rounds of one case take, roughly."""
    each = (_WARM_UP + rounds) * (steps or case.steps) * case.milliseconds / 1e3
    return sum(peer.start + each for peer in peers)


def measure(case: Case, replicas: int, pythons: dict[str | None, str], args: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Measure all contenders of one case."""
    steps = args.steps or case.steps
    commands = {}
    for peer in chosen(case, pythons, args):
        options = [case.name, "--way", peer.way, "--replicas", str(replicas), "--steps", str(steps)]
        commands[peer.name] = pythons[peer.needs], peer.script, [*options, *(["--compiled"] if peer.compiled else [])]
    with tempfile.TemporaryDirectory() as kernels:
        environment = gpu_environment(chosen(case, pythons, args), args.gpu_memory, kernels) if case.gpu else None
        limits: dict[str, Any] = {"rounds": args.rounds, "seconds": seconds, "deadline": args.deadline, "least": LEAST_ROUNDS}
        found = alternate(commands, **limits, environment=environment)
    contenders = {name: dataclasses.asdict(measured) for name, measured in found.items()}
    return {"case": case.name, "replicas": replicas, "batch": case.batch, "steps": steps, "contenders": contenders}


def gpu_environment(peers: Collection[Peer], share: float, kernels: str) -> dict[str, str]:
    """Return the environment of contenders that are on one GPU at once.

    Args:
        peers: The contenders.
        share: The share of the GPU's memory that those with JAX have together. Each takes its part when it starts. What is left is
            for PyTorch, which takes what it needs.
        kernels: A folder in which XLA keeps which kernels were the fastest, so that all contenders with JAX use the same ones.
    """
    number = sum(peer.needs is None for peer in peers)
    return {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{min(0.75, share / max(1, number)):.3f}",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_per_fusion_autotune_cache_dir={kernels}".strip(),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def differing(result: dict[str, Any]) -> str:
    """Name the contenders whose first round does not have the loss of the others, or return an empty string."""
    losses = {name: found["first_loss"] for name, found in result["contenders"].items() if found["first_loss"] is not None}
    finite = [loss for loss in losses.values() if math.isfinite(loss)]
    middle, tolerance = statistics.median(finite) if finite else math.nan, ALL_CASES[result["case"]].tolerance
    names = [name for name, loss in losses.items() if not abs(loss - middle) <= tolerance * abs(middle)]  # NaN is named, too
    if not names:
        return ""
    away = f"**First loss more than {100 * tolerance:g} % away from the median of all, {middle:.4f}:**"
    return f"{away} {', '.join(names)}."


def table(result: dict[str, Any]) -> str:
    """Format one case as Markdown. A ratio says how many times as fast as the contender Replicant is (median of paired rounds)."""
    case, contenders = ALL_CASES[result["case"]], result["contenders"]
    rounds = max((len(found["seconds"]) for found in contenders.values()), default=0)
    one = "one GPU" if case.gpu else "one device"
    devices = one if result["replicas"] == 1 else f"{result['replicas']} virtual devices"
    rows = {name: {} if found["failed"] else cells(name, result) for name, found in contenders.items()}
    columns = [*dict.fromkeys(column for row in rows.values() for column in row)]
    lines = [
        f"**{case.title}**, {devices}, global batch {result['batch']}, {rounds} rounds of {result['steps']} steps",
        "",
        f"| | {' | '.join(columns)} |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for name, row in rows.items():
        if contenders[name]["failed"]:
            reason = contenders[name]["failed"].replace("|", "\\|")
            lines.append(f"| {name} | failed: {reason} {'| ' * len(columns)}".rstrip())
        else:
            lines.append(f"| {name} | {' | '.join(row.get(column, '') for column in columns)} |")
    if text := differing(result):
        lines += ["", text]
    return "\n".join(lines)


def summary(results: list[dict[str, Any]]) -> str:
    """Format many cases as one table, with a row for each, and name those whose losses differ.

    A library's column says how many times as fast as its fastest contender ``fit`` and the loop are.
    """
    libraries = ("TensorFlow", "PyTorch", "stock Keras-JAX", "hand-written JAX")
    lines = [
        f"| model | devices | `fit`, ms/step | loop, ms/step | {' | '.join(f'against {name}' for name in libraries)} |",
        "|---" * (4 + len(libraries)) + "|",
    ]
    for result in results:
        ours = [result["contenders"].get(own, {}).get("seconds", []) for own in (FIT, LOOP)]
        times = [f"{statistics.median(found) / result['steps'] * 1e3:.3g}" if found else "-" for found in ours]
        case = ALL_CASES[result["case"]]
        row = [case.title, "1 GPU" if case.gpu else str(result["replicas"]), *times]
        row += [", ".join(least_ratio(library, found, result) for found in ours) for library in libraries]
        lines.append(f"| {' | '.join(row)} |")
    notes = [f"* {result['case']}, {result['replicas']}: {text}" for result in results if (text := differing(result))]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def least_ratio(library: str, ours: list[float], result: dict[str, Any]) -> str:
    """Return the least ratio to a contender of a library, or a dash if there is none."""
    peers = [found["seconds"] for name, found in result["contenders"].items() if name.startswith(library) and not found["failed"]]
    paired = [np.divide(peer, ours) for peer in peers if ours and len(peer) == len(ours)]
    return f"{min(float(np.median(ratios)) for ratios in paired):.2f}" if paired else "-"


def cells(name: str, result: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a contender by their columns. What the machine did not tell has no column."""
    found, steps = result["contenders"][name], result["steps"]
    milliseconds = [x / steps * 1e3 for x in found["seconds"]]
    middle = statistics.median(milliseconds)
    row = {
        "ms/step": f"{middle:.3g}",
        "least": f"{min(milliseconds):.3g}",
        "examples/s": f"{result['batch'] / middle * 1e3:,.0f}",
        "processor ms/step": f"{statistics.median(found['processor']) / steps * 1e3:.3g}",
    }
    if found.get("memory"):
        row["peak memory, MB"] = f"{found['memory'] / 1e6:,.0f}"
    if found.get("gpu_memory"):
        row["GPU memory, MB"] = f"{found['gpu_memory'] / 1e6:,.0f}"
    if found.get("joules"):
        row["J/step"] = f"{statistics.median(found['joules']) / steps:.3g}"
    for own, column in ((FIT, "fit is x times as fast"), (LOOP, "loop is x times as fast")):
        ours = result["contenders"].get(own, {"seconds": []})["seconds"]
        row[column] = "" if name in (FIT, LOOP) else shown(found["seconds"], ours)
    return row | {"first loss": f"{found['first_loss']:.4f}"}


def announce(pairs: Collection[tuple[Case, int]], peers: dict[str, list[Peer]], args: argparse.Namespace) -> None:
    """Print how long it will take."""
    few = min(LEAST_ROUNDS, args.rounds)
    least, most = (sum(estimate(case, peers[case.name], n, args.steps) for case, _ in pairs) / 60 for n in (few, args.rounds))
    contenders = sum(len(peers[case.name]) for case, _ in pairs)
    print(
        f"{len(pairs)} tables, {contenders} contenders. Estimate: {max(least, min(most, args.minutes)):.0f} minutes "
        f"(--minutes {args.minutes:g}; {least:.0f} for {few} rounds, {most:.0f} for {args.rounds})",
        flush=True,
    )


def nothing_to_measure(pairs: Collection[tuple[Case, int]], peers: dict[str, list[Peer]], facts: dict[str, Any]) -> str | None:
    """Say why some of what was asked for cannot be measured; return None if all of it can."""
    asked = [name for name in peers if ALL_CASES[name].gpu]
    if asked and facts.get("gpu") is None:
        return f"{', '.join(asked)} need an NVIDIA GPU, and nvidia-smi shows none. Leave them out of --models."
    if left_out := [name for name in asked if all(case.name != name for case, _ in pairs)]:
        return f"{', '.join(left_out)} are measured on one GPU, with one replica. Add 1 to --replicas."
    if without := [name for name, found in peers.items() if not found]:
        return f"no contender for {', '.join(without)}. --contenders takes parts of: {', '.join(peer.name for peer in CONTENDERS)}."
    return None


def main() -> None:
    """Measure, and print the tables."""
    args = parse()
    models = [*CASES] if args.models is None else [name for names in args.models for name in names]
    facts, start = machine(), time.monotonic()
    if any(ALL_CASES[name].gpu for name in models):
        facts["gpu"] = gpu()
    print(f"{Path(__file__).name}: {facts}", flush=True)
    pythons = interpreters(args.peers_python)
    peers = {name: chosen(ALL_CASES[name], pythons, args) for name in models}
    pairs = [(ALL_CASES[name], n) for name in models for n in args.replicas if n == 1 or not ALL_CASES[name].gpu]
    if reason := nothing_to_measure(pairs, peers, facts):
        sys.exit(f"{Path(__file__).name}: {reason}")
    announce(pairs, peers, args)
    results = []
    for i, (case, replicas) in enumerate(pairs):
        times = [estimate(each, peers[each.name], args.rounds, args.steps) for each, _ in pairs[i:]]
        left = 60 * args.minutes - (time.monotonic() - start)
        results.append(measure(case, replicas, pythons, args, left * times[0] / sum(times)))
        print(f"\n{table(results[-1])}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": facts, "results": results}))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
