"""Write the notebooks, executed: python docs/notebook.py [--check] [NAME ...].

The cells of a notebook are those of the page beside it. They are run by a real kernel, and what the page says that a cell prints is
what it prints. What differs from run to run (times) is written as ``...``.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PAGES = {path.stem: path for path in (DOCS / "tutorial.md", *sorted((DOCS / "notebooks").glob("*.md")))}
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)  # with what it printed
_SETUP = """\
import os

os.environ["KERAS_BACKEND"] = "jax"  # before Keras is imported
"""
_NOISE = (
    (r"\x1b\[\d*[mK]", ""),  # colours
    (r"\d+m?s( - )\d+[mu]?s/step", r"...\1.../step"),
    (r"\d+m?s( )\d+[mu]?s/step", r"...\1.../step"),
    (r" at 0x[0-9a-f]+", " at 0x..."),
)
_UNSET = ("XLA_FLAGS", "NPROC", "REPLICANT_FUSE_REPLICAS", "KERAS_BACKEND", "PYTHONWARNINGS")


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


def _quiet(text: str) -> str:
    for pattern, new in _NOISE:
        text = re.sub(pattern, new, text)
    return text


def notebook(page: str, deadline: int = 600) -> dict[str, Any]:
    """The page as an executed notebook, format 4.5.

    Args:
        page: The text of the page.
        deadline: The seconds that a cell may take.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    import nbformat  # of the extra docs; the tests of pages do without it
    from nbclient import NotebookClient
    from traitlets.config import Config

    number, made = 0, []
    for i, (kind, text) in enumerate(cells(page)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{i}", "metadata": {}, "source": text}
        if kind == "code":
            number += 1
            cell |= {"execution_count": number, "outputs": []}
        made.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = nbformat.from_dict(
        {
            "cells": made,
            "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    with tempfile.TemporaryDirectory() as folder:  # for sockets that only this user can open
        sockets = Config({"KernelManager": {"transport": "ipc", "ip": f"{folder}/kernel"}})
        client = NotebookClient(
            book,
            config=sockets,
            timeout=deadline,
            kernel_name="python3",
            coalesce_streams=True,
            record_timing=False,
            startup_timeout=300,
        )
        client.execute(env={name: value for name, value in os.environ.items() if name not in _UNSET})
    book.metadata["language_info"] = {"name": "python"}  # not the version of this Python
    return _without_noise(json.loads(nbformat.writes(book)))


def _without_noise(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_noise(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_noise(each) for each in value]
    return _quiet(value) if isinstance(value, str) else value


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
    parser = argparse.ArgumentParser(description="Write the notebooks, executed.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(PAGES)} (default: all)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if one has changed")
    options, status = parser.parse_args(), 0
    for name in options.names or PAGES:
        page = PAGES[name]
        file, new = page.with_suffix(".ipynb"), notebook(page.read_text())
        if not options.check:
            file.write_text(json.dumps(new, indent=1, ensure_ascii=False) + "\n")
        elif changed := differences(json.loads(file.read_text()), new):
            print(f"{file.name}: these cells have changed: {', '.join(changed)}. Run: python docs/notebook.py {name}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
