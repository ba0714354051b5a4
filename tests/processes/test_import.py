"""What `import replicant` costs, in a fresh process."""

import os
import subprocess
import sys

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


def test_import_loads_no_optional_package():
    loaded = answer(f"import sys, replicant; print(sorted(set(sys.modules) & set({OPTIONAL})))")
    assert loaded == "[]"


def test_import_does_not_start_jax():
    assert answer("import replicant; from jax._src import xla_bridge; print(xla_bridge.backends_are_initialized())") == "False"


def test_import_loads_nothing_but_jax_and_a_checksum():
    """What it costs on top of `import jax` is Replicant's own modules; `benchmarks/startup.py` has the seconds."""
    program = (
        "import sys, jax; before = set(sys.modules); import replicant; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'jax', 'jaxlib'}))"
    )
    assert answer(program) == "['google_crc32c', 'replicant']"
