"""Flax NNX, Linen and Equinox in real processes: two workers give the numbers of two devices, and kill -9 loses no step."""

import signal
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

LIBRARIES = ["nnx", "linen", "equinox"]


def start(folder, library, num_workers, **environ):
    folder.mkdir(exist_ok=True)
    several = num_workers > 1
    given = {
        "LIBRARY": library,
        "STRATEGY": "MultiWorkerMirroredStrategy" if several else "MirroredStrategy",
        "DEVICES": "1" if several else "2",
        "FOLDER": str(folder / "checkpoints"),
        **environ,
    }
    if not several:
        given |= dict.fromkeys(("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "JAX_COORDINATOR_ADDRESS"))
    return _group.Group(HERE / "_worker_neighbours.py", num_workers, folder, environ=given)


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_two_workers_and_a_killed_run_equal_one_that_was_never_interrupted(tmp_path, library):
    """The last batch of an epoch has 6 rows. NNX draws dropout masks, which go on where they were."""
    (whole,) = start(tmp_path / "whole", library, 1).ended_well()
    killed = start(tmp_path / "killed", library, 1, KILL_AT="4")
    assert killed.wait()[0].status == -signal.SIGKILL
    (resumed,) = start(tmp_path / "killed", library, 1).ended_well()
    workers = start(tmp_path / "workers", library, 2).ended_well()
    assert [whole["began"], whole["steps"], resumed["began"]] == [0, 6, 4]
    assert resumed["weights"] == whole["weights"]
    for worker in workers:
        for found, expected in zip(worker["weights"], whole["weights"], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
