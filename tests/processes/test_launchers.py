"""Other launchers really start an example on two processes, where they are installed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

EXAMPLE = HERE.parents[1] / "examples" / "many_workers.py"
ROOT_MAY = dict.fromkeys([f"{name}_ALLOW_RUN_AS_ROOT{end}" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")], "1")
LAUNCHERS = {
    "mpirun": ["mpirun", "-n", "2", "--oversubscribe", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"],
    "torchrun": ["torchrun", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--no-python"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_an_example(launcher: str, tmp_path: Path) -> None:
    if shutil.which(launcher) is None:
        pytest.skip(f"{launcher} is not installed")
    more = ["--master-port", str(_group.free_port())] if launcher == "torchrun" else []
    start, *options = LAUNCHERS[launcher]
    done = subprocess.run(
        [start, *more, *options, sys.executable, str(EXAMPLE), "--epochs", "1", "--batch-size-per-replica", "32"],
        env=_group.clean_environment() | ROOT_MAY,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_group.SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.findall(r"Worker (\d) of (\d): test loss (\d\.\d+)", done.stdout)
    assert sorted((rank, count) for rank, count, _ in found) == [("0", "2"), ("1", "2")]
    # What one process on its own ends with.
    assert [float(loss) for _, _, loss in found] == [pytest.approx(1.6053, abs=2e-3)] * 2
