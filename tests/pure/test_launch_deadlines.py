"""Which worker has missed a deadline, from what is known about all of them: tables."""

import pytest

from replicant.launch._settings import Settings
from replicant.launch.record._progress import Progress
from replicant.launch.team._deadlines import Deadlines
from replicant.launch.team._policy import Failure, Kind

SETTINGS = Settings(("x",), num_workers=3, heartbeat=30.0, start=100.0, finish=200.0, stall=60.0)
FROZEN = Failure(0, Kind.FROZEN, 124, "30 s")
LATE = Failure(0, Kind.LATE, 124, "100 s")
STUCK = Failure(0, Kind.STUCK, 124, "200 s", "rank 2")
NOBODY = Failure(0, Kind.STUCK, 124, "200 s", "one of the workers")


def progress(moved: float | None, phase: str = "step") -> Progress:
    made = Progress()
    if moved is not None:
        made.hello(0.0, "host")
        made.beat(moved, {"step": 1, "at": moved, "waited": 0.0, "phase": phase})
    return made


MISSED = [
    # its last step, its phase, when another one has come and left, which one has left; now, silent for -> what it has missed
    ((None, "", None, None, None), (999.0, 0.0), None),  # nobody has come
    ((None, "", 10.0, None, None), (110.0, 0.0), None),
    ((None, "", 10.0, None, None), (110.1, 0.0), LATE),
    ((None, "", 10.0, None, None), (110.1, 30.1), FROZEN),  # stopped before its hello
    ((10.0, "step", 10.0, None, None), (999.0, 30.0), None),
    ((10.0, "step", 10.0, None, None), (999.0, 30.1), FROZEN),
    ((10.0, "end", 10.0, None, None), (999.0, 30.1), None),  # while Python ends, its threads do not run
    ((10.0, "step", 10.0, 20.0, 2), (220.0, 0.0), None),
    ((10.0, "step", 10.0, 20.0, 2), (220.1, 0.0), STUCK),
    ((10.0, "step", 10.0, 20.0, None), (220.1, 0.0), NOBODY),  # its program has come to its end, its process has not ended
    ((10.0, "end", 10.0, 20.0, 2), (220.1, 99.0), STUCK),
    ((90.0, "step", 10.0, 20.0, 2), (290.0, 0.0), None),  # it has made steps since
    ((90.0, "step", 10.0, 20.0, 2), (290.1, 0.0), STUCK),
]


@pytest.mark.parametrize(("known", "asked", "expected"), MISSED)
def test_which_deadline_a_worker_has_missed(
    known: tuple[float | None, str, float | None, float | None, int | None], asked: tuple[float, float], expected: Failure | None
) -> None:
    moved, phase, came, left, who = known
    deadlines = Deadlines(SETTINGS, {0: progress(moved, phase)})
    for number in range(2):  # only the first one counts
        if came is not None:
            deadlines.come(came + 5.0 * number)
        if left is not None:
            deadlines.leave(left + 5.0 * number, who)
    now, silent = asked
    assert deadlines.missed(now, 0, silent) == expected


def test_who_has_left_in_which_order() -> None:
    deadlines = Deadlines(SETTINGS, {})
    for rank in (2, None, 0):
        deadlines.leave(1.0, rank)
    assert deadlines.left == [2, 0]


STALLED = Failure(1, Kind.STALLED, 124, "60 s")


@pytest.mark.parametrize(
    ("moved", "now", "expected"),
    [
        ((None, None), 999.0, None),
        ((10.0, 20.0), 80.0, None),
        ((10.0, 20.0), 80.1, STALLED),
        ((10.0, None), 70.1, STALLED),  # who has not come yet has a deadline of its own
    ],
)
def test_whether_all_workers_stand_still(moved: tuple[float | None, float | None], now: float, expected: Failure | None) -> None:
    deadlines = Deadlines(SETTINGS, {1: progress(moved[0]), 2: progress(moved[1])})
    assert deadlines.stalled(now, [1, 2]) == expected


def test_without_the_option_nobody_stands_still_too_long() -> None:
    deadlines = Deadlines(Settings(("x",), num_workers=1), {0: progress(10.0)})
    assert deadlines.stalled(1e6, [0]) is None
