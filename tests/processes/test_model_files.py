"""Model files that all workers of a MultiWorkerMirroredStrategy save to the same path."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402


@pytest.mark.long
def test_workers_may_save_the_same_file_at_the_same_time(tmp_path):
    """Each file is whole whenever somebody reads it, and nothing else is left."""
    (tmp_path / "files").mkdir()
    environ = {"FOLDER": str(tmp_path / "files"), "TIMES": "8"}
    assert _group.Group(HERE / "_worker_saving.py", 2, tmp_path, environ=environ).ended_well() == [True, True]
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["model.keras", "model.weights.h5", "shared.weights.h5"]
