"""Two workers with two CPU devices each, many steps without a wait between them: nothing hangs."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402


@pytest.mark.slow
def test_ten_thousand_steps(tmp_path):
    group = _group.Group(HERE / "_worker_many_steps.py", 2, tmp_path, environ={"STEPS": "10000"})
    first, second = group.ended_well(1800.0)
    assert first == second
    assert len(first) == 100
    assert first[-1] < first[0]
