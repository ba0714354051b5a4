"""A model in slices whose weights and optimizer state are more than any worker may hold: it is made, saved and restored."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

import _group

PART = 0.8  # of the bytes of weights and optimizer state, which each worker may take in addition


def group(folder: Path, kind: str, part: float = PART) -> _group.Group:
    environ = {"KIND": kind, "FOLDER": str(folder), "PART": str(part), "MALLOC_MMAP_THRESHOLD_": "1000000"}
    return _group.Group(Path(__file__).parent / "_worker_limited_memory.py", 2, folder, environ=environ)


@pytest.mark.slow
def test_a_model_that_no_worker_could_hold_is_made_saved_and_restored(tmp_path: Path) -> None:
    for found in group(tmp_path, "sharded").ended_well(300):
        assert found["limit"] == int(PART * found["whole"])
        assert found["made"] < 0.6 * found["whole"]  # half of it, and what making it needs
        assert found["peak"] < found["limit"]
        assert found["after"] == found["before"]
        assert len({*found["before"], *found["other"]}) == 2 * len(found["before"])


@pytest.mark.slow
def test_mirrored_it_needs_more_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    for found in group(tmp_path / "without", "mirrored", 10).ended_well(300):
        assert found["peak"] > found["whole"]
    for worker in group(tmp_path, "mirrored").wait(300):
        assert worker.status != 0  # XLA raises an error, or aborts
        assert "saved" not in worker.out  # until then, zeros that nobody has written may share memory
