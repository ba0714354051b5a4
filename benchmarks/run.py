"""Runs all benchmarks for ``make bench``. Figures go to ``results/<date>-<machine>.json``, and all tables to a file beside it.

``docs/performance.md`` gets a summary of them, and the plots. ``training.py``, ``startup.py`` and ``growth.py`` write figures. Of
the others, the printed tables are kept. Each benchmark is a process with a deadline. Run:
``python benchmarks/run.py [--peers-python /path/to/python] [--minutes 150]``.

A run of a part (``--only``, ``--models`` and others) writes a file of its own and leaves the page as it is.
``--from WHOLE PART`` draws both together.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import growth
import startup
import training
from _figures import machine, slug
from _rounds import exit_when_terminated, uninterrupted
from contenders._cases import ALL_CASES

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
PAGE, PLOTS = DOCS / "performance.md", DOCS / "performance"
RESULTS = HERE / "results"

_CHATTER = re.compile(r"[IWE]\d{4} ")  # lines of TensorFlow's log
_PRINTED_DEADLINE = 900.0  # the least seconds for each benchmark that prints tables
_FULL_GROWTH = 300  # seconds from which `growth.py` measures all points

# For benchmarks that write figures, their share of the time. For those that print tables, their arguments, and the option that
# names the peers' Python.
FIGURES = {"training": 0.7, "startup": 0.04, "growth": 0.04}
PRINTED: dict[str, tuple[list[str], str | None]] = {
    "step_overhead.py": ([], None),
    "fit.py": ([], None),
    "kernels.py": ([], None),
    "checkpoint.py": ([], None),
    "input.py": ([], "as interpreter"),
    "parameter_server.py": (["--rounds", "3", "--seconds", "60"], "--tensorflow"),
    "workers.py": ([], "--peers"),
    "plan.py": ([], None),
}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Run all benchmarks.")
    parser.add_argument("--peers-python", help="the interpreter of the environment of peers.txt")
    parser.add_argument("--minutes", type=float, default=150, help="the time for everything, roughly (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="the most rounds of training and starts (default: %(default)s)")
    parser.add_argument("--only", nargs="*", choices=[*FIGURES, *PRINTED], default=[*FIGURES, *PRINTED])
    training.add_options(parser)
    parser.add_argument("--page", type=Path, help="fill this page instead of docs/performance.md")
    parser.add_argument("--tables", type=Path, help="write all tables here instead of results/<date>-tables.md, or beside the page")
    parser.add_argument("--from", type=Path, nargs="+", dest="sources", help="fill the page from these files, and measure nothing")
    return parser.parse_args()


def training_options(args: argparse.Namespace) -> list[str]:
    """Return the options of ``training.py`` that choose what it measures."""
    found = ["--replicas", *map(str, args.replicas)]
    if args.models is not None:
        found += ["--models", *(",".join(names) for names in args.models)]
    if args.contenders is not None:
        found += ["--contenders", *args.contenders]
    return [*found, *(["--all-contenders"] if args.all_contenders else [])]


def part(args: argparse.Namespace) -> str:
    """Return the name of the part that is measured, or an empty string for all of it."""
    names = [] if {*args.only} == {*FIGURES, *PRINTED} else [Path(name).stem for name in args.only]
    names += [name for listed in args.models or [] for name in listed]
    if args.contenders is not None or args.replicas != [1, 2]:
        names.append("some")
    return "-".join(names)


def shares(only: list[str]) -> dict[str, float]:
    """Return the shares of the time for the benchmarks that write figures.

    >>> shares(["training"])
    {'training': 1.0}
    """
    asked = {name: share for name, share in FIGURES.items() if name in only}
    printed = 1 - sum(FIGURES.values()) if any(name in PRINTED for name in only) else 0
    return {name: round(share / (sum(asked.values()) + printed), 3) for name, share in asked.items()}


def arguments(name: str, args: argparse.Namespace, seconds: float) -> list[str]:
    """Return the arguments with which a benchmark ends within roughly so many seconds."""
    peers = ["--peers-python", args.peers_python] if args.peers_python else []
    if name == "training":
        return ["--minutes", f"{seconds / 60:.2f}", "--rounds", str(args.rounds), *peers, *training_options(args)]
    if name == "startup":
        return ["--rounds", str(max(3, min(args.rounds, int(seconds / 25))))]
    full = ["--full"] if seconds >= _FULL_GROWTH else []  # the largest point takes that long to compile
    return ["--rounds", str(max(3, min(args.rounds, int(seconds / 60)))), "--deadline", f"{4 * seconds:.0f}", *full]


def printed_command(name: str, peers_python: str | None) -> list[str]:
    """Return the command that starts a benchmark that prints tables."""
    options, peers = PRINTED[name]
    if not peers or not peers_python:
        return [sys.executable, str(HERE / name), *options]
    if peers == "as interpreter":
        return [peers_python, str(HERE / name), *options]
    return [sys.executable, str(HERE / name), *options, peers, peers_python]


def _stop(process: subprocess.Popen[str]) -> None:
    """Let a benchmark end its contenders, which are in sessions of their own, and then kill it."""
    with contextlib.suppress(ProcessLookupError), uninterrupted():
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def call(command: list[str], deadline: float) -> dict[str, str]:
    """Run a benchmark, show what it prints line by line, and return its text and the reason if it failed."""
    lines: list[str] = []
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}  # the peers' environment has no replicant
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **pipes, env=environment, start_new_session=True) as process:
        too_late = threading.Event()

        def end() -> None:
            too_late.set()
            _stop(process)

        timer = threading.Timer(deadline, end)
        timer.start()
        try:
            for line in process.stdout or ():
                print(line, end="", flush=True)
                lines.append(line)
            process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:  # after Ctrl-C, which does not reach its session
                _stop(process)
    verdict = f"stopped after {deadline:.0f} s" if too_late.is_set() else ""
    if process.returncode and not verdict:
        verdict = f"failed with status {process.returncode}"
    print(verdict, flush=True)
    return {"text": "".join(lines), "failed": verdict}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmarks that were asked for."""
    now = dt.datetime.now(dt.UTC)
    libraries = {name: version(name) for name in ("replicant-jax", "jax", "jaxlib", "keras", "numpy")}
    found: dict[str, Any] = {
        "date": f"{now:%Y-%m-%d}",
        "machine": machine(),
        "libraries": libraries,
        "gpu": "measured by itself: One GPU in docs/performance.md",
        "printed": {},
    }
    begun, budget, printed = time.monotonic(), 60 * args.minutes, [name for name in args.only if name in PRINTED]
    for name, share in shares(args.only).items():
        print(f"== {name}", flush=True)
        seconds = budget * share
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            command = [sys.executable, str(HERE / f"{name}.py"), *arguments(name, args, seconds), "--json", str(path)]
            called = call(command, 4 * seconds + 3600)  # each benchmark has its own bounds, and this is the last resort
            if path.exists():
                found[name] = json.loads(path.read_text())
            else:
                found["printed"][name] = called
    for i, name in enumerate(printed):
        print(f"== {name}", flush=True)
        left = max(60.0, budget - (time.monotonic() - begun))
        found["printed"][name] = call(printed_command(name, args.peers_python), max(_PRINTED_DEADLINE, left / (len(printed) - i)))
    return found


def head(found: dict[str, Any]) -> str:
    """Say when and with what the figures of a file were measured."""
    facts, gpu = found["machine"], found.get("training", {}).get("machine", {}).get("gpu")
    libraries = ", ".join(f"{name} {v}" for name, v in found["libraries"].items())
    peers = {}
    for result in found.get("training", {}).get("results", []):
        for contender in result["contenders"].values():
            peers |= contender["libraries"]
    others = ", ".join(f"{name} {v}" for name, v in sorted(peers.items()) if name not in found["libraries"])
    return (
        f"{found['date']}; {facts['processor']}, {facts['cores']} cores, {f'{gpu}, ' if gpu else ''}{facts['system']}, "
        f"Python {facts['python']}; {libraries}"
        + (f"; peers: {others}" if others else "")
        + f". Load average when it began: {facts['load']}"
        + (" (**other programs were running**)." if facts["load"] > 0.5 * facts["cores"] else ".")
    )


def merged(files: list[dict[str, Any]]) -> dict[str, Any]:
    """Put files of results together. What a later one has replaces what an earlier one has, and the page says so."""
    whole, *later = files
    whole = {"heads": [head(whole)], **whole}
    for found in later:
        names = [name for name in FIGURES if name in found] + [*found["printed"]]
        if "training" in found:
            new = {(result["case"], result["replicas"]): result for result in found["training"]["results"]}
            old = {(result["case"], result["replicas"]): result for result in whole.get("training", {}).get("results", [])}
            order = [*ALL_CASES]
            results = sorted((old | new).items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
            whole["training"] = found["training"] | {"results": [result for _, result in results]}
            names[0] = "training (" + ", ".join(dict.fromkeys(case for case, _ in new)) + ")"
        whole |= {name: found[name] for name in ("startup", "growth") if name in found}
        whole["printed"] = whole["printed"] | found["printed"]
        whole["date"] = max(whole["date"], found["date"])
        whole["heads"].append(f"From a run by itself: {', '.join(names)}. {head(found)}")
    return whole


def page(found: dict[str, Any], tables_path: Path) -> str:
    """Write the measured part of the docs: what to expect, and where all tables are."""
    shown = tables_path.relative_to(HERE.parent) if tables_path.is_relative_to(HERE.parent) else tables_path.name
    names = ", ".join(f"`{source}`" for source in found["sources"])
    parts = [*found.get("heads", [head(found)]), f"All tables, with the intervals: `{shown}`, drawn from {names}."]
    if "training" in found:
        parts += ["### Training", training.summary(found["training"]["results"])]
    if "growth" in found or "startup" in found:
        parts += _start_and_growth(found)
    if "growth" in found:
        plots = [
            f"![{growth.QUANTITIES[r['quantity']].title}](performance/growth-{r['quantity'].replace('_', '-')}.svg)"
            for r in found["growth"]["results"]
            if "failed" not in r
        ]
        parts.append("\n".join(plots))
    return "\n\n".join(parts)


def _start_and_growth(found: dict[str, Any]) -> list[str]:
    """Write the tables of starts and of growth."""
    parts = ["### Start", startup.table(found["startup"])] if "startup" in found else []
    return parts + (["### Growth", growth.table(found["growth"]["results"])] if "growth" in found else [])


def tables(found: dict[str, Any]) -> str:
    """Write all tables, and what benchmarks without figures have printed."""
    parts = [f"# All tables of the benchmarks, {found['date']}", *found.get("heads", [head(found)])]
    parts.append(f"Drawn by `benchmarks/run.py --from {' '.join(found['sources'])}`.")
    if "training" in found:
        parts += ["## Training", *map(training.table, found["training"]["results"])]
    parts += [part.replace("### ", "## ") for part in _start_and_growth(found)]
    for name, called in found["printed"].items():
        lines = [line for line in called["text"].strip("\n").rstrip().splitlines() if not _CHATTER.match(line)] or ["no message"]
        last = ([line for line in lines if "Error" in line] or lines)[-1]
        failed = f"{called['failed']}: `{last[:160]}`"
        parts += [f"## `{name}`", failed if called["failed"] else markdown_of(lines)]
    if not any(ALL_CASES[result["case"]].gpu for result in found.get("training", {}).get("results", [])):
        parts += ["## GPU", f"| CNN, ResNet-50, GPT-2 in bfloat16 on one GPU | {found['gpu']} |\n|---|---|"]
    return "\n\n".join(parts) + "\n"


def markdown_of(lines: list[str]) -> str:
    r"""Write the lines that a benchmark has printed: tables between empty lines, and text without a table as it stands.

    >>> markdown_of(["medians of 3", "| a | b |", "|---|---|", "| 1 | 2 |"])
    'medians of 3\n\n| a | b |\n|---|---|\n| 1 | 2 |'
    >>> markdown_of(["a  b", "1  2"])
    '```text\na  b\n1  2\n```'
    """
    is_row = [line.startswith("|") for line in lines]
    if not any(is_row):
        return "\n".join(["```text", *lines, "```"])
    parts = [lines[0]]
    for i in range(1, len(lines)):
        if is_row[i] != is_row[i - 1] and lines[i] and lines[i - 1]:
            parts.append("")
        parts.append(lines[i])
    return "\n".join(parts)


def fill(path: Path, found: dict[str, Any], tables_path: Path) -> None:
    """Write the summary of the figures between the markers of a page."""
    text = path.read_text(encoding="utf-8")
    filled, count = re.subn(
        r"(<!-- measured -->\n).*?(<!-- end of measured -->)",
        lambda match: f"{match[1]}\n{page(found, tables_path)}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        sys.exit(f"{path}: expected one pair of <!-- measured --> and <!-- end of measured -->, found {count}")
    path.write_text(filled, encoding="utf-8")


def main() -> None:
    """Measure, write the results, and fill the page."""
    args = parse()
    exit_when_terminated()
    if args.sources:
        found = merged([json.loads(path.read_text()) for path in args.sources])
        found["sources"] = [path.name for path in args.sources]
    else:
        found = measure(args)
        path = write(found, part(args))
        found["sources"] = [path.name]
        if part(args) and not args.page:
            print(f"a part: the page keeps its figures. Draw them together: python benchmarks/run.py --from WHOLE.json {path}")
            return finish(found)
    beside = args.page.with_name(f"{args.page.stem}-tables.md") if args.page else RESULTS / f"{found['date']}-tables.md"
    tables_path = args.tables or beside
    tables_path.write_text(tables(found), encoding="utf-8")
    fill(args.page or PAGE, found, tables_path)
    if "growth" in found:
        growth.draw(found["growth"]["results"], PLOTS)
    print(f"tables: {tables_path}, {args.page or PAGE}")
    return finish(found)


def write(found: dict[str, Any], part: str) -> Path:
    """Write the figures to the folder of results."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{found['date']}-{slug(found['machine'])}{f'-{part}' if part else ''}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"figures: {path}")
    return path


def finish(found: dict[str, Any]) -> None:
    """End with an error if a benchmark failed."""
    if failed := [name for name, called in found["printed"].items() if called["failed"]]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
