"""Real workers that share files, are killed, and go on in other numbers: every line is seen once in each pass."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # test folders are no packages

import _group  # noqa: E402

SIZES, PASSES = (9, 2, 14, 5), 3  # of the files; with two workers, the chief has another number of lines than the other

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "groups",  # the numbers of workers, of devices for each, and of the step at which they are killed
    [
        [(2, 1, 3), (3, 1, 6), (1, 2, 0)],
        [(3, 2, 5), (2, 1, 7), (2, 2, 0)],
        [(1, 1, 4), (3, 1, 0)],
    ],
    ids=lambda groups: " then ".join(str(group[0]) for group in groups),
)
def test_killed_workers_are_followed_by_others(tmp_path, groups):
    first = 0
    for number, size in enumerate(SIZES):
        (tmp_path / f"{number}.txt").write_text("".join(f"{first + i}\n" for i in range(size)))
        first += size
    for number, (num_workers, devices, until) in enumerate(groups):
        answers = tmp_path / f"group-{number}"
        answers.mkdir()
        environ = {"FOLDER": str(tmp_path), "NUM_ROWS": str(first), "UNTIL": str(until), "DEVICES": str(devices)}
        group = _group.Group(HERE / "_worker_elastic.py", num_workers, answers, environ=environ)
        if until:
            kill_when_waiting(group, num_workers)
        else:
            assert group.ended_well() == [[PASSES] * first] * num_workers


def kill_when_waiting(group, num_workers):
    try:
        for rank in range(num_workers):
            group.wait_for_line(rank, "waits for its end", 240)
    finally:
        group.kill()
