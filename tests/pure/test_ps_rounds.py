"""Synchronous updates: which functions' changes make an update, and how they become one."""

import numpy as np
import pytest

from replicant.coordinator.scheduling._merge import merge
from replicant.coordinator.scheduling._rounds import Rounds
from replicant.coordinator.servers._push import Change, Operation


def began(rounds, *closures, worker="w"):
    for closure in closures:
        assert rounds.may_begin()
        rounds.begin(closure, worker)


def test_a_round_is_over_when_enough_have_offered():
    rounds = Rounds(2)
    began(rounds, 0, 1)
    assert not rounds.may_begin()
    assert rounds.offer(1, "b")
    assert rounds.close(last=False) is None
    assert not rounds.may_begin()  # a third would be for the same values
    assert rounds.offer(0, "a")
    assert rounds.close(last=False) == ["a", "b"]  # in the order of the functions, whoever was first
    assert rounds.close(last=False) is None  # while they are applied
    assert (rounds.may_begin(), rounds.is_idle, rounds.updates) == (False, False, 0)
    rounds.applied()
    assert (rounds.may_begin(), rounds.is_idle, rounds.updates) == (True, True, 1)
    assert (rounds.accepted, rounds.dropped) == (2, 0)


def test_the_slowest_are_left_out():
    rounds = Rounds(2, backups=1)
    began(rounds, 0, 1, 2)
    assert not rounds.may_begin()
    assert rounds.offer(2, "c")
    assert rounds.offer(1, "b")
    assert rounds.close(last=False) == ["b", "c"]
    rounds.applied()
    began(rounds, 3, 4)  # while 0 still computes on the values before
    assert not rounds.offer(0, "a")
    assert rounds.offer(3, "d")
    assert rounds.offer(4, "e")
    assert not rounds.may_begin()
    assert rounds.close(last=False) == ["d", "e"]
    assert (rounds.accepted, rounds.dropped) == (4, 1)


def test_an_offer_while_others_are_applied_is_too_late():
    rounds = Rounds(1, backups=1)
    began(rounds, 0, 1)
    assert rounds.offer(0, "a")
    assert rounds.close(last=False) == ["a"]
    assert not rounds.offer(1, "b")
    rounds.applied()
    assert (rounds.is_idle, rounds.dropped) == (True, 1)


def test_the_last_round_may_be_smaller_once_nothing_runs():
    rounds = Rounds(3)
    began(rounds, 0, 1)
    rounds.offer(0, "a")
    assert rounds.close(last=True) is None
    rounds.leave(1)  # it changed nothing
    assert rounds.close(last=False) is None
    assert rounds.close(last=True) == ["a"]
    rounds.applied()
    assert rounds.close(last=True) is None


def test_what_a_lost_worker_did_begins_again():
    rounds = Rounds(2)
    began(rounds, 0, worker="lost")
    began(rounds, 1, worker="other")
    rounds.lose("lost")
    assert rounds.may_begin()
    began(rounds, 0, worker="third")
    assert rounds.offer(0, "a")
    assert rounds.offer(1, "b")
    assert rounds.close(last=False) == ["a", "b"]


def apply(*changes, rule=7):
    return Operation("apply", [Change(shard, np.array(v, "f4"), rows and np.array(rows)) for shard, v, rows in changes], rule)


def add(shard, value, rule=-1):
    return Operation("add", [Change(shard, np.float32(value), None)], rule)


def plain(batch):
    def parts(operation):
        return [(c.shard, c.values.tolist(), None if c.rows is None else c.rows.tolist()) for c in operation.changes]

    return [[(operation.kind, operation.rule, parts(operation)) for operation in operations] for operations in batch]


@pytest.mark.parametrize(
    ("offers", "expected"),
    [
        pytest.param(
            [[[apply((0, [1, 2], None)), add(3, 1, rule=7)]], [[apply((0, [10, 20], None)), add(3, 1, rule=7)]]],
            [[("apply", 7, [(0, [11.0, 22.0], None)]), ("add", 7, [(3, 1.0, None)])]],
            id="gradients are summed and their application counts once",
        ),
        pytest.param(
            [[[apply((0, [[1], [2]], [4, 9]))]], [[apply((0, [[5]], [9]), (1, [3], None))]]],
            [[("apply", 7, [(0, [[1.0], [7.0]], [4, 9]), (1, [3.0], None)])]],
            id="rows are joined",
        ),
        pytest.param(
            [[[apply((0, [[1], [2]], None))]], [[apply((0, [[5]], [1]))]]],
            [[("apply", 7, [(0, [[1.0], [7.0]], None)])]],
            id="rows are added to a whole table",
        ),
        pytest.param(
            [[[apply((0, [1], None)), apply((0, [2], None))]], [[apply((0, [10], None)), apply((0, [20], None))]]],
            [[("apply", 7, [(0, [11.0], None)]), ("apply", 7, [(0, [22.0], None)])]],
            id="the second application in a function goes with the second in the other",
        ),
        pytest.param(
            [[[apply((0, [1], None))]], [[apply((0, [1], None), rule=8)]]],
            [[("apply", 7, [(0, [1.0], None)]), ("apply", 8, [(0, [1.0], None)])]],
            id="optimizers are told apart",
        ),
        pytest.param([[[add(2, 1)]], [[add(2, 5)]]], [[("add", -1, [(2, 1.0, None)]), ("add", -1, [(2, 5.0, None)])]], id="sums"),
        pytest.param(
            [[[Operation("assign", [Change(0, np.float32(x))])], []] for x in (1, 2, 6)],
            [[("assign", -1, [(0, 3.0, None)])], []],
            id="moving statistics are averaged",
        ),
        pytest.param(
            [[[Operation("assign", [Change(0, np.array([x]))])]] for x in (1, 2, 6)],
            [[("assign", -1, [(0, [6], None)])]],
            id="of whole numbers the last counts",
        ),
    ],
)
def test_changes_of_several_functions_as_one(offers, expected):
    assert plain(merge(offers)) == expected
