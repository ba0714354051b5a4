"""Two processes of each real launcher train two steps with the numbers of one. One is killed, and the launcher says so.

`make test-launchers` runs this. A launcher that is not here is skipped, with the way to get it.
"""

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "processes")]  # test folders are no packages

import _group  # noqa: E402
import _slurm  # noqa: E402
from _install import FOLDER  # noqa: E402
from _launchers import LAUNCHERS, Launcher  # noqa: E402

pytestmark = pytest.mark.slow

PROGRAM = HERE / "_program.py"
SECONDS = 240.0
PYTHON = [sys.executable, str(PROGRAM)]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The variables of a launcher, which its processes inherit."""
    return _group.clean_environment() | {
        "FOLDER": str(folder),
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
        "NPROC": "8",
        "REPLICANT_COMPILATION_CACHE": os.environ.get("REPLICANT_COMPILATION_CACHE", "0"),
        "REPLICANT_EXCHANGE_TIMEOUT": "60",
        "REPLICANT_START_TIMEOUT": "120",
        **more,
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one process computes."""
    folder = tmp_path_factory.mktemp("alone")
    subprocess.run(PYTHON, env=environment(folder, REPLICANT_SINGLE="1"), check=True, timeout=SECONDS)
    return json.loads((folder / "answer-0-of-1.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cluster of Slurm."""
    if (reason := _slurm.missing()) is not None:
        pytest.skip(reason)
    with _slurm.Slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


def check(folder: Path, alone: Any, source: str, count: int = 2) -> None:
    """Check that the processes have trained together, with the numbers of one."""
    names = sorted(path.name for path in folder.glob("answer-*.json"))
    assert names == [f"answer-{rank}-of-{count}.json" for rank in range(count)]
    for name in names:
        answer = json.loads((folder / name).read_text(encoding="utf-8"))
        assert answer["source"] == source
        np.testing.assert_allclose(answer["loss"], alone["loss"], rtol=1e-6)
        for mine, theirs in zip(answer["weights"], alone["weights"], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-7)


def run(command: list[str], variables: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)


def started(launcher: Launcher, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command of a launcher with two processes, and its environment."""
    found = launcher.find()
    if found is None:
        pytest.skip(f"not here: {launcher.install}")
    port = _group.free_port()
    values = {"port": str(port), "address": f"127.0.0.1:{port}", "folder": str(folder)}
    more = {name: value.format(**values) for name, value in launcher.environment.items()}
    return [*found, *(option.format(**values) for option in launcher.options), *PYTHON], environment(folder, **more)


def wait_for_the_end(folder: Path) -> None:
    """Wait until no process of the program is left that was given this folder."""
    deadline = time.monotonic() + 60
    while (left := _processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


def _processes_of(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            mine = (
                f"FOLDER={folder}\0".encode() in path.read_bytes()
                and str(PROGRAM).encode() in (path.parent / "cmdline").read_bytes()
            )
        except OSError:
            continue
        if mine and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("name", LAUNCHERS)
def test_training(name: str, tmp_path: Path, alone: Any) -> None:
    command, variables = started(LAUNCHERS[name], tmp_path)
    done = run(command, variables, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, alone, LAUNCHERS[name].source)
    assert list(tmp_path.glob("replicant-*")) == []


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_killed_process(name: str, tmp_path: Path) -> None:
    command, variables = started(LAUNCHERS[name], tmp_path)
    done = run(command, variables | {"DIES": "1"}, tmp_path)
    assert done.returncode == LAUNCHERS[name].killed, (done.returncode, done.stdout[-2000:], done.stderr[-3000:])
    assert list(tmp_path.glob("answer-*")) == []
    wait_for_the_end(tmp_path)


def test_prterun_without_the_number_of_processes(tmp_path: Path) -> None:
    """Its processes know only their ranks. None trains alone."""
    command, variables = started(LAUNCHERS["prterun with a rendezvous"], tmp_path)
    command = [part for part in command if part not in ("-x", "JAX_NUM_PROCESSES=2")]
    done = run(command, variables, tmp_path)
    assert done.returncode != 0
    assert "PMIx: OMPI_COMM_WORLD_SIZE or JAX_NUM_PROCESSES is not set." in done.stderr
    assert list(tmp_path.glob("answer-*")) == []


def in_ray(folder: Path, **more: str) -> tuple[list[str], dict[str, str]]:
    if importlib.util.find_spec("ray") is None:  # its import would set variables
        pytest.skip("not here: pip install 'replicant-jax[ps]'")
    return [sys.executable, str(HERE / "_ray_train.py")], environment(folder, **more)


def test_ray_train(tmp_path: Path, alone: Any) -> None:
    done = run(*in_ray(tmp_path), tmp_path)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    check(tmp_path, alone, "Ray Train")


def test_a_killed_worker_of_ray_train(tmp_path: Path) -> None:
    done = run(*in_ray(tmp_path, DIES="1"), tmp_path)
    assert done.returncode == 1, (done.returncode, done.stderr[-3000:])
    assert "WorkerGroupError" in done.stderr
    assert list(tmp_path.glob("answer-*")) == []


def in_spark(folder: Path, **more: str) -> tuple[list[str], dict[str, str]]:
    python = FOLDER / "pyspark" / "bin" / "python"
    if not python.exists() or shutil.which("java") is None:
        pytest.skip("not here: python tests/launchers/_install.py, and apt-get install default-jre-headless")
    packages = next((FOLDER / "pyspark" / "lib").glob("python*/site-packages"))
    path = f"{os.environ.get('PYTHONPATH', '')}:{packages}"
    return [sys.executable, str(HERE / "_spark.py")], environment(folder, PYTHONPATH=path, PYSPARK_PYTHON=sys.executable, **more)


@pytest.mark.parametrize("barrier", ["barrier", "plain"])
def test_spark(tmp_path: Path, alone: Any, barrier: str) -> None:
    """Tasks of a barrier stage train together. Other tasks do not train alone."""
    command, variables = in_spark(tmp_path)
    done = run([*command, barrier], variables, tmp_path)
    if barrier == "barrier":
        assert done.returncode == 0, [line for line in done.stderr.splitlines() if not line.startswith("\tat ")][:60]
        check(tmp_path, alone, "Spark")
        return
    assert done.returncode == 1, done.stderr[-3000:]
    assert "SPARK_REUSE_WORKER=1 (Spark), this process is one of several" in done.stderr
    assert list(tmp_path.glob("answer-*")) == []


SRUN = ["srun", "--chdir=/", "-n", "2"]


def in_slurm(slurm: Any, folder: Path, **more: str) -> dict[str, str]:
    return environment(folder, **slurm.environment, **more)


def test_srun(slurm: Any, tmp_path: Path, alone: Any) -> None:
    done = run([*SRUN, *PYTHON], in_slurm(slurm, tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, alone, "Slurm")


def test_srun_on_two_nodes(slurm: Any, tmp_path: Path, alone: Any) -> None:
    done = run([*SRUN, "-N", "2", *PYTHON], in_slurm(slurm, tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, alone, "Slurm")


def test_a_killed_task_of_srun(slurm: Any, tmp_path: Path) -> None:
    done = run([*SRUN, "--kill-on-bad-exit=1", *PYTHON], in_slurm(slurm, tmp_path, DIES="1"), tmp_path)
    # The highest code of its tasks: that of the killed one, or that of the other, which srun ended.
    assert done.returncode in (128 + signal.SIGKILL, 128 + signal.SIGTERM), (done.returncode, done.stderr[-3000:])
    assert list(tmp_path.glob("answer-*")) == []
    wait_for_the_end(tmp_path)


def test_a_step_that_is_smaller_than_its_job(slurm: Any, tmp_path: Path, alone: Any) -> None:
    done = run(["salloc", "-n", "4", *SRUN, *PYTHON], in_slurm(slurm, tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, alone, "Slurm")


def test_multi_prog(slurm: Any, tmp_path: Path, alone: Any) -> None:
    programs = tmp_path / "programs"
    programs.write_text(f"0 {shlex.join(PYTHON)}\n1 {shlex.join([*PYTHON, '--worker'])}\n", encoding="utf-8")
    done = run([*SRUN, "--multi-prog", str(programs)], in_slurm(slurm, tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, alone, "Slurm")


@pytest.mark.parametrize("first", _slurm.NODES)
def test_a_heterogeneous_job(slurm: Any, tmp_path: Path, alone: Any, first: str) -> None:
    """Process 0 is in the first component, whichever name of a node comes first."""
    second = next(node for node in _slurm.NODES if node != first)
    command = ["srun", "--chdir=/", "-n", "1", "-w", first, *PYTHON, ":", "-n", "1", "-w", second, *PYTHON]
    done = run(command, in_slurm(slurm, tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, alone, "Slurm")


def test_a_batch_script_without_srun(slurm: Any, tmp_path: Path) -> None:
    """The script runs once, in a job of two tasks. It does not train alone."""
    command = ["sbatch", "--wait", "-n", "2", "-o", str(tmp_path / "out"), "--wrap", shlex.join(PYTHON)]
    done = run(command, in_slurm(slurm, tmp_path), tmp_path)
    assert done.returncode == 1
    said = (tmp_path / "out").read_text(encoding="utf-8")
    assert "Slurm: SLURM_NTASKS=2, but this process was not started by srun." in said
    assert list(tmp_path.glob("answer-*")) == []


def test_the_job_that_replicant_launch_prints(slurm: Any, tmp_path: Path, alone: Any) -> None:
    variables = in_slurm(slurm, tmp_path)
    launch = [sys.executable, "-m", "replicant", "launch", "--engine", "slurm", "--workers", "2", str(PROGRAM)]
    printed = run(launch, variables, tmp_path)
    assert printed.returncode == 0, printed.stderr
    script = tmp_path / "job.sh"
    script.write_text(printed.stdout, encoding="utf-8")
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    done = run(["sbatch", "--wait", "-o", str(tmp_path / "out"), str(script)], variables, tmp_path)
    assert done.returncode == 0, (done.stderr, (tmp_path / "out").read_text(encoding="utf-8"))
    check(tmp_path, alone, "Slurm")
