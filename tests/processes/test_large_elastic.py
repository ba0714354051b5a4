"""An elastic job on one host whose workers read large arrays from each other's memory: one is killed, and one comes back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

TOTAL = float(sum(range(1, 401)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies from process to process")
def test_a_worker_is_killed_and_comes_back(tmp_path):
    command = [sys.executable, "-m", "replicant", "launch", "--workers", "2", "--elastic", "1:2", "--max-restarts", "3"]
    environ = _group.clean_environment() | {"FOLDER": str(tmp_path), "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environ |= {name: os.environ[name] for name in ("REPLICANT_COMPILATION_CACHE",) if name in os.environ}
    command += ["--log-dir", str(tmp_path / "logs"), str(HERE / "_large_elastic.py")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_group.SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if "begins" in line and line.startswith("[0]")] == [
        "[0] begins 2 True",
        "[0] begins 1 False",
        "[0] begins 2 True",
    ]
    assert sorted(line for line in lines if "ends" in line) == [f"[{rank}] ends 2 {TOTAL} {TOTAL}" for rank in range(2)]
