"""Counts in another process how often code is traced for each program, from what the logger ``replicant.programs`` is told."""

import os
import re
from pathlib import Path

_LINE = re.compile(r"traced (.*) for a new program, times: (\d+)( \(the first made variables\))?")
_SETUP = """\
import logging, os

logger = logging.getLogger("replicant.programs")
logger.setLevel(logging.DEBUG)
logger.propagate = False
logger.addHandler(logging.FileHandler(os.environ["REPLICANT_TESTS_TRACES"]))
"""


def logging_traces(folder: Path) -> dict[str, str]:
    """Return the environment in which Python writes a log of traces into `folder`."""
    (folder / "setup").mkdir(parents=True)
    (folder / "setup" / "sitecustomize.py").write_text(_SETUP)
    paths = [str(folder / "setup"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "REPLICANT_TESTS_TRACES": str(folder / "traces.log")}


def assert_traced_once(folder: Path) -> int:
    """Raise for a program that took two traces, unless its code made variables in the first. Return the number of programs."""
    lines = (folder / "traces.log").read_text().splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    wrong = [
        line for line, match in zip(lines, found, strict=True) if match is None or int(match[2]) != (1 if match[3] is None else 2)
    ]
    assert wrong == []
    return len(found)
