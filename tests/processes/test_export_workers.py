"""Two workers export the model that they trained together: to the same files, and one alone where that is possible."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("sliced", ["0", "1"])
def test_two_workers_export_the_same_model(tmp_path, sliced):
    pytest.importorskip("safetensors", reason="pip install 'replicant-jax[export]'")
    folder = tmp_path / "exported"
    folder.mkdir()
    environ = {"FOLDER": str(folder), "SLICED": sliced, "PYTHONWARNINGS": "default"}
    chief, other = _group.Group(HERE / "_worker_export.py", 2, tmp_path, environ=environ).ended_well()
    assert np.abs(np.subtract(chief["outputs"], other["outputs"])).max() == 0
    assert (chief["devices"], chief["same"], other["same"]) == (1, True, True)
    assert (chief["loaded"], other["loaded"]) == (True, True)
    files = {"model.safetensors"} if sliced == "1" else {"model.safetensors", "alone.safetensors"}
    if importlib.util.find_spec("tensorflow") is None:
        assert {path.name for path in folder.iterdir()} == files
        assert chief["error"].startswith("ImportError: ")
        told = "CheckpointError: worker 0 " if sliced == "1" else "ImportError: "
        assert other["error"].startswith(told)
    else:
        folders = {"served"} if sliced == "1" else {"served", "alone"}
        assert {path.name for path in folder.iterdir()} == files | folders
        assert max(chief["served"], other["served"]) < 1e-6
