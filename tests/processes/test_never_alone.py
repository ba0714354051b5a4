"""A process that is one of several never trains alone by mistake: where the program has connected JAX, and under launchers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

from replicant.cli import _launch  # noqa: E402
from replicant.errors import ClusterError  # noqa: E402
from replicant.strategies._multi_worker import check_alone  # noqa: E402

NO_VARIABLES = dict.fromkeys(("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"))


@pytest.mark.long
@pytest.mark.parametrize("variables", [{}, NO_VARIABLES], ids=["the launcher's variables", "no variables"])
def test_a_program_that_has_called_initialize(tmp_path, variables):
    address = f"127.0.0.1:{_group.free_port()}"
    workers = _group.Group(
        HERE / "_worker_initialized.py", 2, tmp_path, [address, "2"], lambda rank: {**variables, "RANK_HERE": str(rank)}
    )
    for rank, said in enumerate(workers.ended_well()):
        expected = (
            f"AlreadyStartedError: The program has called jax.distributed.initialize (process {rank} of 2, coordinator {address}). "
            "Strategies over workers connect JAX themselves, so that a lost worker is an error and not a hang: remove the call."
        )
        assert said["MultiWorkerMirroredStrategy"].startswith(expected)
        assert said["FullyShardedStrategy"].startswith(expected)
        assert said["alone"] == 1
        [warned] = said["warned"]
        if variables:
            assert f"jax.distributed.initialize has made this process {rank} of 2." in warned


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, "SLURM_STEP_NUM_TASKS=2 and SLURM_PROCID=0 (Slurm)"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "PMI_SIZE=2 and PMI_RANK=1 (MPICH, Intel MPI or Cray PALS)"),
        ({"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETION_INDEX=1 (Kubernetes)"),
    ],
)
def test_replicant_launch_that_a_launcher_starts_several_times(monkeypatch, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError) as error:
        _launch._check_started_once()
    assert str(error.value).startswith(f"by {said}, another launcher has started this command several times, and each would start")
    monkeypatch.setenv("REPLICANT_SINGLE", "1")
    _launch._check_started_once()


@pytest.mark.parametrize("variables", [{"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, {"LSB_HOSTS": "a b"}, {"PBS_NUM_NODES": "2"}])
def test_replicant_launch_in_a_batch_job_of_several_hosts(monkeypatch, variables):
    """The script of a batch job runs once."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _launch._check_started_once()


def test_the_command(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("print('runs')", encoding="utf-8")
    command = [sys.executable, "-m", "replicant", "launch", "--workers", "2", str(program)]
    environ = _group.clean_environment() | {"PMI_RANK": "1", "PMI_SIZE": "2", "PYTHONPATH": os.environ["PYTHONPATH"]}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_group.SECONDS, check=False)
    assert done.returncode != 0
    assert "runs" not in done.stdout
    assert "by PMI_SIZE=2 and PMI_RANK=1 (MPICH, Intel MPI or Cray PALS), another launcher has started this command" in done.stderr


def test_a_strategy_of_tpus(monkeypatch):
    check_alone("TPUStrategy")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ClusterError, match=r"TPUStrategy: nothing that Replicant reads .* by RANK=1 \(torchrun\)"):
        check_alone("TPUStrategy")
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "5"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ClusterError, match="the TPU's variables describe one host, but torchrun says that this is process 1 of 2"):
        check_alone("TPUStrategy")
