"""Runs a short program in a process of its own, which must end well and write nothing to standard error."""

import subprocess
import sys
from collections.abc import Mapping


def printed(program: str, environ: Mapping[str, str]) -> str:
    """Run a program in which every warning is an error, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()
