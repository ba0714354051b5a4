"""Measures one GPU, part by part, and writes a dated report. ``benchmarks/on_gpu.sh`` runs it, with what it needs installed."""

import argparse
import datetime as dt
import os
import re
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from _dated_report import EVERYTHING, page_table, problems, report, results_of
from _parts import BENCHMARKS, ROOT, all_parts, run_all

sys.path.append(str(BENCHMARKS))

from _figures import gpu, machine
from _rounds import exit_when_terminated

LIBRARIES = ("jax", "keras", "numpy", "torch")


def parse(names: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/on_gpu.sh", description="Everything about one GPU, in ten minutes.")
    parser.add_argument("--dry", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--minutes", type=float, default=9.7, help="the time for everything (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=names, help="the parts to run")
    parser.add_argument("--peers-python", default=sys.executable, help="an interpreter that has PyTorch (default: this one)")
    return parser.parse_args()


def environment(caches: Path, *, dry: bool) -> dict[str, str]:
    """Return the environment of all parts, which share the programs and kernels that were compiled."""
    shared = {
        "KERAS_BACKEND": "jax",
        "REPLICANT_COMPILATION_CACHE": str(caches / "programs"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
    }
    return shared | ({"BENCHMARK_DRY": "1", "JAX_PLATFORMS": "cpu"} if dry else {})


def versions() -> str:
    """Name the libraries and their versions."""
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def main() -> int:
    """Run the parts. Return 1 if one failed or was not measured."""
    began = time.monotonic() - max(0.0, time.time() - float(os.environ.get("ON_GPU_BEGAN", time.time())))  # with the installation
    names = [part.name for part in all_parts(Path(), "", dry=False)]
    options = parse(names)
    device = "CPU, dry" if options.dry else gpu()
    if device is None:
        print("on_gpu: nvidia-smi shows no GPU. Add --dry to try the script on a CPU.", file=sys.stderr)
        return 2
    exit_when_terminated()
    date, facts = dt.datetime.now(tz=dt.UTC).date(), machine()
    out = Path(os.environ["OUT"]) if os.environ.get("OUT") else ROOT / "build" if options.dry else BENCHMARKS / "results"
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{date}-{re.sub(r'[^a-z0-9]+', '-', device.lower()).strip('-')}{'-part' if options.only else ''}.md"
    outcomes, results = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = all_parts(folder, options.peers_python, dry=options.dry)
        parts = [part for part in parts if options.only is None or part.name in options.only]
        for outcome in run_all(parts, began + 60 * options.minutes, environment(folder, dry=options.dry)):
            outcomes.append(outcome)
            results = results_of(folder)
            head = f"# One GPU, {date}\n\n{device}, {facts['cores']} cores ({facts['processor']}), Python {facts['python']}, "
            head += f"{versions()}; {len(outcomes)} of {len(parts)} parts, {time.monotonic() - began:.0f} s in all"
            file.write_text(report(head, outcomes, results), encoding="utf-8")  # each time: whoever stops it keeps what there is
    print(f"{page_table(results)}\n\n{file}")
    found = problems(outcomes, results)
    print("\n".join(found) or EVERYTHING)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
