"""The closure queue: who runs what, in which order, and what happens when a worker is lost."""

import pytest

from replicant.coordinator.scheduling._queue import UNKNOWN_SECONDS, ClosureQueue
from replicant.coordinator.wire._task import Task


def taken(queue, worker):
    task = queue.take(worker)
    return None if task is None else (task.closure, task.attempt)


def test_closures_are_taken_in_order_up_to_the_depth():
    queue = ClosureQueue(depth=2)
    assert [queue.add() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [taken(queue, w) for w in ("a", "b", "a", "a", "b", "b")] == [(0, 0), (1, 0), (2, 0), None, (3, 0), None]
    assert (len(queue), queue.num_queued, queue.low_water) == (5, 1, 0)
    queue.end(0)
    assert taken(queue, "a") == (4, 0)
    assert queue.low_water == 1


def test_the_low_water_mark_is_the_smallest_that_has_not_ended():
    queue = ClosureQueue(depth=9)
    for _ in range(4):
        queue.add()
    assert [queue.take("a") for _ in range(4)] == [Task(i, 0, 0) for i in range(4)]
    marks = []
    for ended in (2, 0, 1, 3):
        queue.end(ended)
        marks.append(queue.low_water)
    assert marks == [0, 1, 3, 4]


def test_a_closure_waits_for_those_whose_values_it_needs():
    queue = ClosureQueue(depth=9)
    first, second = queue.add(), queue.add()
    queue.add(needs=[first, second])
    assert [taken(queue, "a") for _ in range(3)] == [(0, 0), (1, 0), None]
    assert queue.end(first) == []
    assert queue.end(second) == [2]
    assert taken(queue, "a") == (2, 0)
    assert queue.add(needs=[first]) == 3  # it has ended: nothing to wait for
    assert taken(queue, "a") == (3, 0)


def test_what_a_lost_worker_held_is_taken_next_in_its_old_order():
    queue = ClosureQueue(depth=2)
    for _ in range(6):
        queue.add()
    assert [taken(queue, w) for w in ("a", "b", "a", "b")] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert (queue.first_held("a"), queue.first_held("b"), queue.first_held("c")) == ((0, 0), (1, 0), None)
    assert queue.lose("a", 0) == []
    assert not queue.is_current(0, 0)
    assert [taken(queue, "c") for _ in range(2)] == [(0, 1), (2, 1)]
    assert queue.first_held("c") == (0, 1)
    assert queue.is_current(0, 1)
    assert not queue.is_current(0, 0)  # the lost worker's answer, should it still arrive
    queue.end(1)
    assert taken(queue, "b") == (4, 0)


def lost_while_calling(calls, *, max_attempts=3):
    """Two closures that every worker is given; each worker dies while it calls one of these. Returns who is given up, and when."""
    queue = ClosureQueue(depth=2, max_attempts=max_attempts)
    queue.add(), queue.add()
    for worker, executing in enumerate(calls):
        for _ in range(2):
            queue.take(worker)
        if given_up := queue.lose(worker, executing):
            return given_up, worker + 1
    assert queue.num_ready == 2
    return [], queue.most_losses


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([0, 0, 0], ([0], 3)),
        ([1, 1, 1], ([1], 3)),
        ([0, 1, 0, 1, 0], ([0], 5)),  # the second has been given to five workers as well, but only two died while they called it
        ([None] * 50, ([], 0)),  # nobody is to blame for workers that die before they begin
        ([0, None, 0, None, None], ([], 2)),
    ],
)
def test_only_the_closure_that_was_being_called_is_charged_with_a_worker(calls, expected):
    assert lost_while_calling(calls) == expected


def test_a_closure_that_loses_too_many_workers_is_given_up_and_those_behind_it_are_not():
    queue = ClosureQueue(depth=2, max_attempts=2)
    queue.add(), queue.add()
    assert [taken(queue, "a") for _ in range(2)] == [(0, 0), (1, 0)]
    assert queue.lose("a", 0) == []
    assert [taken(queue, "b") for _ in range(2)] == [(0, 1), (1, 1)]
    assert queue.lose("b", 0) == [0]
    queue.end(0)
    assert taken(queue, "c") == (1, 2)
    assert (len(queue), queue.num_ended) == (1, 1)


def test_cancelling_leaves_what_runs():
    queue = ClosureQueue(depth=1)
    for _ in range(4):
        queue.add()
    queue.take("a")
    assert queue.cancel_queued() == [1, 2, 3]
    assert len(queue) == 1
    queue.end(0)
    assert (len(queue), queue.low_water) == (0, 4)
    assert queue.take("a") is None


@pytest.mark.parametrize(("bound", "together"), [(0, 1), (1, 2), (2, 3), (None, 4)])
def test_no_more_closures_overlap_than_the_bound_allows(bound, together):
    queue = ClosureQueue(max_staleness=bound)
    for _ in range(8):
        queue.add()
    running = [w for w in "abcd" if queue.take(w) is not None]
    assert len(running) == together


def test_the_others_wait_for_a_slow_worker_at_the_bound():
    queue = ClosureQueue(max_staleness=3)
    for _ in range(20):
        queue.add()
    slow = queue.take("slow")
    assert slow is not None
    ended = 0
    while (task := queue.take("fast")) is not None:
        queue.end(task.closure)
        ended += 1
    assert ended == 3  # three pushes after the slow one's reads, and no more
    queue.end(slow.closure)
    assert taken(queue, "fast") == (4, 0)


def held_after(queue, seconds, *, count=40):
    for _ in range(count):
        queue.add()
    while queue.take("a", seconds) is not None:
        pass
    return queue.held_by("a")


@pytest.mark.parametrize(("seconds", "held"), [(0.0001, 16), (0.001, 10), (0.0025, 4), (0.004, 2), (1.0, 2), (UNKNOWN_SECONDS, 2)])
def test_a_worker_holds_many_closures_only_if_they_are_short(seconds, held):
    assert held_after(ClosureQueue(deep=16, deep_seconds=0.0100001), seconds) == held


@pytest.mark.parametrize("options", [{"depth": 1}, {"max_staleness": 50}])
def test_where_closures_must_not_wait_at_a_worker_none_does(options):
    assert held_after(ClosureQueue(**options), 0.0001) == 1


def test_a_short_closure_does_not_wait_behind_a_long_one():
    queue = ClosureQueue(deep_seconds=0.01)
    for _ in range(4):
        queue.add()
    assert queue.take("a", 5.0) is not None
    assert queue.take("a", 0.001) is not None  # two are always held
    assert queue.take("a", 0.001) is None
    queue.end(0)
    assert queue.take("a", 0.001) is not None


def test_a_worker_is_given_more_when_half_of_it_is_done():
    queue = ClosureQueue(deep=8, deep_seconds=1.0)
    assert queue.is_short_of("a")
    assert held_after(queue, 0.001) == 8
    short = []
    for number in range(8):
        short.append(queue.is_short_of("a"))
        queue.end(number)
    assert short == [False] * 4 + [True] * 4


def test_all_that_a_lost_worker_held_is_taken_again_in_order():
    queue = ClosureQueue(deep=8, deep_seconds=1.0)
    held_after(queue, 0.001, count=10)
    queue.end(0)
    assert queue.lose("a", 1) == []
    assert queue.held_by("a") == 0
    assert [queue.take("b", 0.001) for _ in range(3)] == [Task(1, 1, 1), Task(2, 1, 1), Task(3, 1, 1)]
