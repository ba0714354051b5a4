"""The threads of XLA's pool: more than the cores only where programs of several CPU devices wait for each other."""

import os
import subprocess
import sys

import pytest

SCRIPT = "import os, replicant; replicant.set_virtual_devices({n}); {then}; print(os.environ.get('NPROC'))"


@pytest.mark.cases(
    "8-replicant.MirroredStrategy()-environ0-None", "2-replicant.MirroredStrategy(shard_optimizer_state=True)-environ2-8"
)
@pytest.mark.parametrize(
    ("n", "then", "environ", "expected"),
    [
        (8, "replicant.MirroredStrategy()", {}, "None"),
        (3, "replicant.MirroredStrategy(fuse_replicas=False)", {}, "12"),
        (2, "replicant.MirroredStrategy(shard_optimizer_state=True)", {"NPROC": "4"}, "8"),
        (2, "replicant.TPUStrategy(devices=['cpu:0', 'cpu:1'])", {"NPROC": "9"}, "9"),
    ],
)
@pytest.mark.long
def test_threads(n: int, then: str, environ: dict[str, str], expected: str) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS", "REPLICANT_FUSE_REPLICAS")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(n=n, then=then)],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr
