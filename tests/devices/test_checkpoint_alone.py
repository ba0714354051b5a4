"""A process that trains alone is warned, once, before it saves a checkpoint that the other processes of its job overwrite."""

import warnings

import pytest

import replicant
from replicant.cluster.meeting import _lone


@pytest.fixture
def fresh(monkeypatch):
    """As in a new process, without the variables of a launcher."""
    monkeypatch.setattr(_lone._Process, "warned", False)
    monkeypatch.setattr(_lone._Process, "strategy", None)
    return monkeypatch


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
SIGNS = [
    (TORCHRUN, "but torchrun says that this is process 1 of 2. If each of several processes runs this program, they overwrite"),
    ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "HOROVOD_SIZE=2 and HOROVOD_RANK=0 (Horovod), this process is one of several"),
    ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "but the launcher's variables are not understood: MPICH or Intel MPI: by PMI_SIZE=2,"),
]


@pytest.mark.parametrize(("environ", "words"), SIGNS)
def test_one_warning_before_checkpoints(fresh, tmp_path, environ, words):
    for name, value in environ.items():
        fresh.setenv(name, value)
    replicant.MirroredStrategy(["cpu:0"])
    checkpoint = replicant.Checkpoint(step=replicant.Variable(3))
    with pytest.warns(UserWarning, match="MirroredStrategy trains in this process only and saves a checkpoint") as caught:
        checkpoint.save(tmp_path / "a")
    assert words in str(caught[0].message)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint.save(tmp_path / "a")


@pytest.mark.parametrize("environ", [{}, TORCHRUN | {"REPLICANT_SINGLE": "1"}, TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}])
def test_no_warning_for_a_process_that_is_meant_to_be_alone(fresh, tmp_path, environ):
    for name, value in environ.items():
        fresh.setenv(name, value)
    replicant.MirroredStrategy(["cpu:0"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replicant.Checkpoint(step=replicant.Variable(3)).save(tmp_path / "a")


def test_no_warning_without_the_strategy(fresh, tmp_path):
    for name, value in TORCHRUN.items():
        fresh.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replicant.Checkpoint(step=replicant.Variable(3)).save(tmp_path / "a")
