"""Each library in real processes: two workers give the numbers of one device, and kill -9 loses no step."""

import signal
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

pytestmark = pytest.mark.slow
library = pytest.mark.parametrize("library", ["keras", "nnx", "linen", "equinox", "jax"])


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


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@library
def test_resume(library, tmp_path):
    """A run that is killed with kill -9 and started again ends with the bits of one that was not.

    NNX draws dropout masks, which go on where they were; they differ by replica, so only the others equal one device.
    """
    options = {"DROPOUT": "0.3"} if library == "nnx" else {}
    (whole,) = start(tmp_path / "whole", library, 1, **options).ended_well()
    killed = start(tmp_path / "killed", library, 1, KILL_AT="4", **options)
    assert killed.wait()[0].status == -signal.SIGKILL
    (resumed,) = start(tmp_path / "killed", library, 1, **options).ended_well()
    assert [whole["began"], whole["steps"], resumed["began"]] == [0, 6, 4]
    assert resumed["weights"] == whole["weights"]
    if not options:
        assert_close(whole["weights"], whole["expected"])


@library
def test_two_workers(library, tmp_path):
    """The last batch of an epoch has 5 rows, 3 for the first worker and 2 for the second."""
    for worker in start(tmp_path, library, 2).ended_well():
        assert_close(worker["weights"], worker["expected"])
