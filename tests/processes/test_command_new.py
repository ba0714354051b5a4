"""What ``replicant new`` writes: it keeps this repository's style, and its own tests pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicant.cli import _new

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("template", _new.TEMPLATES)
def test_what_is_written_follows_the_style_of_this_repository(tmp_path, template):
    folder = _new.write_project("fish", tmp_path, template)
    for command in (["check", "--ignore=INP001,T201"], ["format", "--check"]):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                *command,
                "--no-cache",
                "--config",
                str(ROOT / "pyproject.toml"),
                str(folder / "fish.py"),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("with_sklearn")
@pytest.mark.parametrize(("template", "count"), [("loop", 6), ("fit", 4), ("jax", 4), ("lm", 6), ("nnx", 4), ("ps", 3)])
def test_the_tests_of_a_new_project_pass(tmp_path, template, count):
    folder = _new.write_project("fish", tmp_path, template)
    unset = ("NPROC", "XLA_FLAGS", "KERAS_BACKEND", "PYTHONWARNINGS", "REPLICANT_FUSE_REPLICAS")
    clean = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fish.py"],
        cwd=folder,
        env={**clean, "REPLICANT_COMPILATION_CACHE": str(tmp_path / "compiled")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert f"{count} passed" in done.stdout
