"""Runs the core of the suite with every tested Python that is here, each with its own JAX, and prints a table.

    python tests/versions.py [3.12 3.13] [--keras 3.12 3.14] [--pytest -k name]

Each Python has a virtual environment in build/versions, which is used again while constraints.txt and pyproject.toml are the same.
The newest Python also runs the tests of Keras with each Keras of `--keras`. The exit status is 1 if something has failed. That a
Python is not here is said in the table, and is no failure.
"""

import argparse
import dataclasses
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "versions"
LINES = ("3.11", "3.12", "3.13")
MISSING = "not found"

# What most depends on JAX, Keras and Python: a few files of each thing that users do, and the parts that meet inner names.
CORE = {
    "run": (
        "run",
        "function",
        "tape",
        "collectives",
        "variable_copies",
        "equal_to_one_device",
        "reduction_checks",
        "pure_jax",
        "meshes",
        "fully_sharded",
    ),
    "libraries": ("libraries", "nnx", "linen_and_equinox", "exchange_gradients", "libraries_table"),
    "tracing": ("varying", "fused", "gradient_paths", "primitive_names"),
    "fit": ("fit_equal_to_one_device", "fit_rows", "variables_in_keras", "keras_hooks"),
    "input": ("distributed_input", "input_transforms", "input_shuffle", "input_parallel"),
    "checkpoint": ("checkpoint", "checkpoint_keras", "checkpoint_storage"),
    "workers": ("multi_worker", "workers_world", "cluster_rollcall"),
    "kernels": (
        "kernels",
        "kernel_compiled",
        "kernel_convolutions",
        "kernel_phases",
        "kernels_start",
        "kernels_tried",
        "translation",
        "kernel_memory",
        "kernels_of_cudnn",
        "lowering_for_gpu",
    ),
    "start": ("import", "quick_import", "compile_cache", "kept_programs", "command_doctor"),
}
KERAS = ("fit*", "keras_hooks", "keras_seams")


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table."""

    python: str
    jax: str = ""
    keras: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether something has failed. That a Python is not here is no failure."""
        return self.note not in ("", MISSING)


def find(line: str) -> str | None:
    """The path of an interpreter of a line, such as "3.13"."""
    done = subprocess.run([ROOT / ".ci" / "find_python", line], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() or None


def environment(line: str, python: str) -> Path:
    """Make the virtual environment of a line, unless it is there and up to date. Returns its interpreter."""
    folder = FOLDER / line
    own, stamp = folder / "bin" / "python", folder / "installed"
    wanted = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in ("constraints.txt", "pyproject.toml"))).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Installing into {folder.relative_to(ROOT)} (once; a minute or two) ...", flush=True)
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        install = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--constraint", "constraints.txt", "--editable", ".[dev]"], cwd=ROOT, check=True)
        stamp.write_text(wanted)
    return own


def other_keras(python: Path, version: str) -> Path:
    """Install a version of Keras by itself, such as 3.12.0, or the newest 3.12. Returns the folder."""
    folder = FOLDER / f"keras-{version}"
    if not folder.exists():
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run([*install, part, f"keras=={version}{'' if version.count('.') > 1 else '.*'}"], check=True)
        part.rename(folder)
    return folder


def run(line: str, python: Path, tests: Sequence[str], arguments: Sequence[str], keras: Path | None = None) -> Row:
    """Run tests with an interpreter. Returns their line of the table."""
    environ = os.environ | {"PYTHONPATH": str(keras)} if keras else dict(os.environ)
    environ.setdefault("REPLICANT_COMPILATION_CACHE", str(ROOT / "build" / "programs"))
    show = "from importlib.metadata import version; print(version('jax'), version('keras'))"
    jax, of_keras = subprocess.run([python, "-c", show], env=environ, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    print(f"== Python {line}, jax {jax}, keras {of_keras}", flush=True)
    report = FOLDER / "report.xml"
    report.unlink(missing_ok=True)
    files = [path.relative_to(ROOT) for name in tests for path in sorted(ROOT.glob(f"tests/*/test_{name}.py"))]
    pytest = [python, "-m", "pytest", "--quiet", "--numprocesses=2", "--dist=loadfile", f"--junitxml={report}"]
    begin = time.monotonic()
    status = subprocess.run([*pytest, *files, *arguments], cwd=ROOT, env=environ, check=False).returncode
    row = Row(line, jax, of_keras, seconds=time.monotonic() - begin)
    return dataclasses.replace(row, **counted(report), note="" if status == 0 else f"pytest ended with {status}")


def counted(report: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped, according to pytest's report."""
    if not report.exists():
        return {}
    suites = list(ET.parse(report).iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return {"passed": total - failures - errors - skipped, "failed": failures + errors, "skipped": skipped}


def table(rows: Sequence[Row]) -> str:
    """The table in Markdown."""
    head = ["Python", "jax", "keras", "passed", "failed", "skipped", "seconds", ""]
    cells = [
        [row.python, row.jax, row.keras, *map(str, (row.passed, row.failed, row.skipped, round(row.seconds))), row.note]
        if row.jax
        else [row.python, "", "", "", "", "", "", row.note]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in (head, *cells)) for column in range(len(head))]
    lines = [head, ["-" * width for width in widths], *cells]
    return "\n".join(" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(" |") for line in lines)


def measure(line: str, keras: Sequence[str], arguments: Sequence[str]) -> list[Row]:
    """Run everything with one Python. What cannot be installed is a line of the table, and the rest goes on."""
    python = find(line)
    if python is None:
        return [Row(line, note=MISSING)]
    try:
        own = environment(line, python)
        rows = [run(line, own, [name for names in CORE.values() for name in names], arguments)]
        return rows + [run(line, own, KERAS, arguments, other_keras(own, version)) for version in keras]
    except subprocess.CalledProcessError as error:
        return [Row(line, note=f"could not be installed: exit status {error.returncode}")]


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"the Pythons (default: {' '.join(LINES)})")
    parser.add_argument(
        "--keras",
        nargs="*",
        default=[],
        metavar="VERSION",
        help="other versions of Keras: 3.12.0, or 3.13 for its newest",
    )
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="what follows is passed to pytest")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = options.lines or list(LINES)
    newest = next((line for line in reversed(lines) if find(line)), None)
    rows = [row for line in lines for row in measure(line, options.keras if line == newest else [], options.pytest)]
    print(f"\n{table(rows)}")
    if newest is None:
        print(f"None of these Pythons was found: {' '.join(lines)}", file=sys.stderr)
    return int(newest is None or any(row.is_bad for row in rows))


if __name__ == "__main__":
    sys.exit(main())
