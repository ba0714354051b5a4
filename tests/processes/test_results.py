"""What a strategy of several workers returns belongs to the caller: it may be consumed, and nothing keeps its memory in use."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages

import _group


@pytest.mark.long
def test_results_may_be_consumed_and_are_not_kept(tmp_path: Path) -> None:
    group = _group.Group(Path(__file__).parent / "_worker_results.py", 2, tmp_path)
    for found in group.ended_well(120):
        assert found["consumed"] == [[4, [2.0] * 4 + [3.0] * 4, True, True]] * 9
        assert found["sum"] == 1 << 22
        assert found["whole"] == [0, 0]
