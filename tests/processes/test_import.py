"""What `import replicant` costs, in a fresh process."""

import os
import subprocess
import sys

NUM_RUNS = 7
ALLOWED_SECONDS = 0.3  # on top of `import jax`

OPTIONAL = ("grain", "keras", "orbax", "ray", "tensorflow", "torch")


def answer(program: str) -> str:
    """Run a program in a process that knows nothing of this one's settings."""
    clean = {name: value for name, value in os.environ.items() if name not in {"NPROC", "XLA_FLAGS", "KERAS_BACKEND"}}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=clean,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def seconds_to_import(module: str) -> float:
    """Of the processor's time, which other programs do not lengthen much."""
    return float(answer(f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"))


def test_import_loads_no_optional_package():
    loaded = answer(f"import sys, replicant; print(sorted(set(sys.modules) & set({OPTIONAL})))")
    assert loaded == "[]"


def test_import_does_not_start_jax():
    assert answer("import replicant; from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())") == "False"


def test_import_takes_little_longer_than_jax():
    pairs = [(seconds_to_import("jax"), seconds_to_import("replicant")) for _ in range(NUM_RUNS)]
    # The least of each: what others do on the machine only adds.
    jax_seconds, replicant_seconds = (min(column) for column in zip(*pairs, strict=True))
    assert replicant_seconds <= jax_seconds + ALLOWED_SECONDS, f"{pairs=}"
