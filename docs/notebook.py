"""Write the tutorial as an executed notebook: python docs/notebook.py [--check].

The cells are those of tutorial.md. They are run as a kernel would: in one new process, and the value of a cell's last expression is
shown, as HTML where it has that. What differs from run to run (times) is written as ``...``.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGE, NOTEBOOK = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)  # with what it printed
_SETUP = """\
import os

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported
"""
_NOISE = ((r"\d+m?s( - )\d+[mu]?s/step", r"...\1.../step"), (r" at 0x[0-9a-f]+", " at 0x..."))

# Runs in the new process: cells come in as JSON, outputs go out as JSON.
_KERNEL = """
import ast, contextlib, io, json, sys

names, found = {"__name__": "__main__"}, []
for number, source in enumerate(json.load(sys.stdin)):
    body, printed, value = ast.parse(source), io.StringIO(), None
    last = ast.Expression(body.body.pop().value) if body.body and isinstance(body.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, f"cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(last, f"cell {number}", "eval"), names)
    shown = None
    if value is not None:
        html = getattr(value, "_repr_html_", None)
        shown = {"text/plain": repr(value), **({"text/html": html()} if html else {})}
    found.append([printed.getvalue(), shown])
sys.stdout.write("\\n" + json.dumps(found))
"""


def cells(page: str) -> list[tuple[str, str]]:
    """The page as ("markdown" | "code", text)."""
    found: list[tuple[str, str]] = []
    end = 0
    for block in _BLOCK.finditer(page):
        found += [("markdown", page[end : block.start()].strip()), ("code", block[1].strip())]
        end = block.end()
    found.append(("markdown", page[end:].strip()))
    first = next(i for i, (kind, _) in enumerate(found) if kind == "code")
    return [*found[:first], ("code", _SETUP.strip()), *[cell for cell in found[first:] if cell[1]]]


def printed(page: str) -> list[str]:
    """What the page says that its blocks print."""
    return [block[2] for block in _BLOCK.finditer(page) if block[2]]


def run(sources: list[str], deadline: float = 600) -> list[list[Any]]:
    """What each code cell prints, and what it shows: [text, {mime type: text} or None]. Raises CalledProcessError if one fails."""
    unset = ("XLA_FLAGS", "NPROC", "REPLICANT_FUSE_REPLICAS", "KERAS_BACKEND", "PYTHONWARNINGS")
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", _KERNEL],
        input=json.dumps(sources),
        env={name: value for name, value in os.environ.items() if name not in unset},
        capture_output=True,
        text=True,
        timeout=deadline,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"A cell failed:\n{done.stderr[-4000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return [[_quiet(text), shown and {kind: _quiet(each) for kind, each in shown.items()}] for text, shown in found]


def _quiet(text: str) -> str:
    for pattern, new in _NOISE:
        text = re.sub(pattern, new, text)
    return text


def notebook(page: str) -> dict[str, Any]:
    """The page as an executed notebook, format 4.5."""
    parts = cells(page)
    outputs = iter(run([text for kind, text in parts if kind == "code"]))
    number, made = 0, []
    for i, (kind, text) in enumerate(parts):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{i}", "metadata": {}, "source": text.splitlines(keepends=True)}
        if kind == "code":
            number += 1
            cell |= {"execution_count": number, "outputs": _outputs(number, *next(outputs))}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": made,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _outputs(number: int, printed: str, shown: dict[str, str] | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if shown is not None:
        data = {kind: text.splitlines(keepends=True) for kind, text in shown.items()}
        found.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return found


def differences(old: dict[str, Any], new: dict[str, Any], tolerance: float = 0.05) -> list[str]:
    """Cells whose sources or outputs differ; numbers with a decimal point may differ by `tolerance` from machine to machine."""
    if len(old["cells"]) != len(new["cells"]):
        return [f"{len(old['cells'])} and {len(new['cells'])} cells"]
    return [a["id"] for a, b in zip(old["cells"], new["cells"], strict=True) if not _alike(a, b, tolerance)]


def _alike(a: Any, b: Any, tolerance: float) -> bool:
    texts = [json.dumps(x, sort_keys=True) for x in (a, b)]
    numbers = [[float(x) for x in re.findall(r"\d+\.\d+", text)] for text in texts]
    words = [re.sub(r"\d+\.\d+", "#", text) for text in texts]
    return words[0] == words[1] and all(abs(x - y) <= tolerance for x, y in zip(*numbers, strict=True))


def main() -> int:
    """Write, or only compare."""
    parser = argparse.ArgumentParser(description="Write the tutorial as an executed notebook.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if it has changed")
    new = notebook(PAGE.read_text())
    if parser.parse_args().check:
        changed = differences(json.loads(NOTEBOOK.read_text()), new)
        if changed:
            print(f"These cells have changed: {', '.join(changed)}. Run: python docs/notebook.py")
        return int(bool(changed))
    NOTEBOOK.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
