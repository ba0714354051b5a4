"""Write what the programs of common-mistakes.md say into the page: python docs/mistakes.py [--check].

A Python block that a ``text`` block follows is a mistake: the text is what it prints and warns, and the error that ends it. The
other Python blocks are right, so they neither warn nor raise. All of them run in one new process, in their order. What differs from
machine to machine (a file's folder) is left out.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "common-mistakes.md"
_BLOCK = re.compile(r"^```python\n(?P<source>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.DOTALL | re.MULTILINE)

# Runs in the new process: blocks come in as JSON, what they said goes out as JSON. Each is a file, because errors quote lines.
_KERNEL = """
import contextlib, io, json, re, sys, warnings
from pathlib import Path

names, found = {"__name__": "__main__"}, []
for number, (source, is_mistake) in enumerate(json.load(sys.stdin)):
    path, printed, error = Path(f"{number}", "train.py").absolute(), io.StringIO(), ""
    path.parent.mkdir()
    path.write_text(source)
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(source, str(path), "exec"), names)
        except Exception as raised:
            if not is_mistake:
                raise
            error = f"{type(raised).__name__}: {raised}"
    told = [f"{each.category.__name__}: {each.message}" for each in caught if not issubclass(each.category, DeprecationWarning)]
    said = [text.strip() for text in (printed.getvalue(), *told, error) if text.strip()]
    found.append(re.sub(re.escape(str(Path.cwd())) + r"/\\d+/", "", "\\n".join(said)))
sys.stdout.write("\\n" + json.dumps(found))
"""


def blocks(page: str) -> list[tuple[str, str | None]]:
    """The Python blocks, each with what the page says that it says; None if it is right."""
    return [(block["source"], block["shown"]) for block in _BLOCK.finditer(page)]


def run(page: str, deadline: float = 550) -> list[str]:
    """What each block says."""
    unset = ("XLA_FLAGS", "NPROC", "REPLICANT_FUSE_REPLICAS", "KERAS_BACKEND", "PYTHONWARNINGS")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-c", _KERNEL],
            cwd=folder,
            input=json.dumps([(source, shown is not None) for source, shown in blocks(page)]),
            env={name: value for name, value in os.environ.items() if name not in unset},
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"A block that is no mistake failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def problems(page: str) -> list[str]:
    """What is not as the page says."""
    found = []
    for (source, shown), said in zip(blocks(page), run(page), strict=True):
        first = source.strip().splitlines()[0]
        if shown is None:
            if "Warning: " in said:
                found.append(f"The block that begins with {first!r} is right, but it says: {said}")
        elif shown.split() != said.split():
            found.append(f"The block that begins with {first!r} says: {said or 'nothing'}")
    return found


def rewritten(page: str) -> str:
    """The page with what its blocks say today."""
    said = iter(run(page))

    def replace(block: re.Match[str]) -> str:
        text = next(said)
        if block["shown"] is None:
            return block[0]
        lines = [wrapped for line in text.splitlines() for wrapped in textwrap.wrap(line, 120) or [""]]
        return f"```python\n{block['source']}```\n\n```text\n" + "\n".join(lines) + "\n```\n"

    return _BLOCK.sub(replace, page)


def main() -> int:
    """Write, or only compare."""
    parser = argparse.ArgumentParser(description="Write what the programs of common-mistakes.md say into the page.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something has changed")
    if parser.parse_args().check:
        found = problems(PAGE.read_text())
        print("\n".join(found))
        return int(bool(found))
    PAGE.write_text(rewritten(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
