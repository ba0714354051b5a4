"""A server killed at any moment: its successor finds the state after some whole number of pushes, and knows which."""

import numpy as np
import pytest

from replicant.coordinator.servers._apply import Applier, subtract_scaled
from replicant.coordinator.servers._ledger import MAX_CLIENTS, NBYTES, PushName
from replicant.coordinator.servers._placing import Shard
from replicant.coordinator.servers._push import Change, Operation, Outbox, Push, combine_rows, pack, unpack
from replicant.coordinator.servers._store import ServerMemory
from replicant.coordinator.wire._memory import pages
from replicant.errors import ParameterServerError

VECTOR, TABLE, SCALAR = range(3)
SHAPES = [(6,), (10, 2), ()]


class Killed(BaseException):
    pass


def new_server():
    memory = ServerMemory.create()
    shards, offset = [], pages(NBYTES)
    for index, shape in enumerate(SHAPES):
        shards.append(Shard(0, index, offset, 0, shape[0] if shape else 0, shape))
        offset += 2 * pages(8 * int(np.prod(shape, dtype=int)))
    memory.values.grow(offset)
    return memory, shards


def applier_of(memory, shards, *, successor=False):
    applier = Applier(memory)
    for shard in shards:
        applier.add_shard(shard, np.dtype("float64"))
    if successor:
        applier.recover()
    return applier


def push_of(closure, operations, *, client=1, attempt=0, sequence=1, low_water=0):
    return Push(PushName(client, closure + 1, sequence), attempt, low_water, 0, 0, operations)


def operations_of(i):
    rows = np.unique(np.array([i % 10, (3 * i) % 10, 7]))
    return [
        Operation("add", [Change(VECTOR, np.full(6, float(i))), Change(TABLE, np.full((rows.size, 2), float(i)), rows)]),
        Operation("add", [Change(SCALAR, np.array(1.0)), Change(VECTOR, np.ones(6))]),
    ]


def values_of(memory, shards):
    found = [np.empty(shard.shape) for shard in shards]
    for shard, out in zip(shards, found, strict=True):
        memory.view(shard, np.dtype("float64")).read_into(out)
    return found


def expected_after(count):
    vector, table = np.zeros(6), np.zeros((10, 2))
    for i in range(count):
        vector += i + 1
        table[np.unique([i % 10, (3 * i) % 10, 7])] += i
    return [vector, table, np.array(float(count))]


class Moments:
    """Stands in for cells of the books: every store into one is a moment at which the server may die."""

    def __init__(self, cells, clock):
        self._cells, self._clock = cells, clock

    def __getitem__(self, key):
        return self._cells[key]

    def __setitem__(self, key, value):
        self._clock()
        self._cells[key] = value
        self._clock()


def apply_and_die(memory, shards, push, moment):
    """Apply a push, dying at the `moment`-th store into the books. True if it got to its end."""
    applier, left = applier_of(memory, shards), [moment]

    def clock():
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    ledger = memory.ledger
    saved = {name: getattr(ledger, name) for name in ("_cells", "started", "done", "in_place", "staleness")}
    for name, cells in saved.items():
        setattr(ledger, name, Moments(cells, clock))
    try:
        applier.apply(push, push.operations)
    except Killed:
        return False
    finally:
        for name, cells in saved.items():
            setattr(ledger, name, cells)
    return True


def test_killed_at_any_moment_a_push_counts_wholly_or_not_at_all():
    outcomes, moment = [], 0
    while True:
        memory, shards = new_server()
        applier = applier_of(memory, shards)
        for i in range(3):
            applier.apply(push_of(i, operations_of(i)), operations_of(i))
        whole = apply_and_die(memory, shards, push_of(3, operations_of(3)), moment)
        successor = applier_of(memory, shards, successor=True)
        count = memory.ledger.updates
        assert count in (3, 4)
        for found, expected in zip(values_of(memory, shards), expected_after(count), strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=f"killed at moment {moment}")
        # The push is sent again, as the next attempt: applied now unless it was before.
        again = push_of(3, operations_of(3), client=2, attempt=1)
        assert successor.apply(again, again.operations) is (count == 3)
        for found, expected in zip(values_of(memory, shards), expected_after(4), strict=True):
            np.testing.assert_array_equal(found, expected)
        outcomes.append(count)
        if whole:
            break
        moment += 1
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {3, 4}
    assert len(outcomes) > 20


def test_a_push_is_applied_once_whoever_sends_it_and_a_later_one_of_the_same_closure_too():
    memory, shards = new_server()
    applier = applier_of(memory, shards)
    add = [Operation("add", [Change(SCALAR, np.array(1.0))])]
    said = [
        applier.apply(push_of(*args, **kwargs), add)
        for args, kwargs in [
            ((7, add), {"client": 1}),
            ((7, add), {"client": 2, "attempt": 1}),
            ((7, add), {"client": 2, "attempt": 1, "sequence": 2}),
            ((7, add), {"client": 3, "attempt": 2, "sequence": 1}),
            ((7, add), {"client": 3, "attempt": 2, "sequence": 2}),
            ((7, add), {"client": 3, "attempt": 2, "sequence": 3}),
            ((8, add), {"client": 1, "attempt": 1}),
        ]
    ]
    assert said == [True, False, True, False, False, True, True]
    assert values_of(memory, shards)[SCALAR] == 4.0
    assert memory.ledger.duplicates == 3


def test_pushes_of_lost_workers_are_remembered_until_their_closures_have_ended():
    memory, shards = new_server()
    applier = applier_of(memory, shards)
    add = [Operation("add", [Change(SCALAR, np.array(1.0))])]
    for client in range(1, MAX_CLIENTS + 1):
        applier.apply(push_of(client, add, client=client), add)
    with pytest.raises(ParameterServerError, match=rf"remembers the last push of {MAX_CLIENTS} workers"):
        applier.apply(push_of(5000, add, client=5000), add)
    assert applier.apply(push_of(5000, add, client=5000, low_water=10), add)
    assert not applier.apply(push_of(11, add, client=5001, attempt=1, low_water=11), add)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("assign", [5, 5, 2]), ("add", [5, 6, 2]), ("multiply", [0, 5, 2]), ("max", [5, 5, 2]), ("min", [0, 1, 2])],
)
def test_every_kind_of_change_of_rows(kind, expected):
    memory, shards = new_server()
    applier = applier_of(memory, shards)
    start = [Operation("assign", [Change(TABLE, np.repeat(np.arange(10.0), 2).reshape(10, 2))])]
    applier.apply(push_of(0, start), start)
    change = [Operation(kind, [Change(TABLE, np.full((2, 2), 5.0), np.array([0, 1]))])]
    applier.apply(push_of(1, change), change)
    assert values_of(memory, shards)[TABLE][:3, 0].tolist() == expected


def test_arrays_in_a_push_come_out_as_they_went_in():
    sender = Outbox(ServerMemory.create().saved)
    receiver = Outbox(sender.memory)
    big = np.arange(5000.0)
    small = np.array(3, "int32")
    rows = Change(2, big.reshape(50, 100), np.arange(50))
    operations = [Operation("add", [Change(0, big), Change(1, small)]), Operation("assign", [rows])]
    packed = pack(operations, sender)
    receiver.see(sender.nbytes)
    found = unpack(packed, receiver)
    for before, after in zip(operations, found, strict=True):
        for one, other in zip(before.changes, after.changes, strict=True):
            np.testing.assert_array_equal(one.values, other.values)
            assert one.values.dtype == other.values.dtype
            assert (one.rows is None) == (other.rows is None)


def test_repeated_rows_are_added_up():
    rows, values = combine_rows(np.array([4, 1, 4, 0]), np.array([[1.0], [2.0], [3.0], [4.0]]))
    assert rows.tolist() == [0, 1, 4]
    assert values.ravel().tolist() == [4.0, 2.0, 4.0]
    rows, values = combine_rows(np.empty(0, int), np.empty((0, 1)))
    assert rows.size == values.size == 0


def test_subtract_scaled_is_that():
    old, gradient = np.arange(100_000.0, dtype="f4"), np.ones(100_000, "f4")
    new = np.empty_like(old)
    subtract_scaled(new, old, gradient, 0.5)
    np.testing.assert_array_equal(new, old - np.float32(0.5))


def test_a_dead_workers_push_that_is_read_late_is_left_out():
    """The closure was repeated by another worker meanwhile, which has pushed something else since; or it has even ended."""
    memory, shards = new_server()
    applier = applier_of(memory, shards)
    add = [Operation("add", [Change(SCALAR, np.array(1.0))])]
    assert applier.apply(push_of(5, add, client=2, attempt=1), add)
    assert applier.apply(push_of(6, add, client=2), add)
    assert not applier.apply(push_of(5, add, client=1), add)
    assert not applier.apply(push_of(5, add, client=3, attempt=2), add)
    assert applier.apply(push_of(5, add, client=3, attempt=2, sequence=2), add)  # its second push is another one
    assert applier.apply(push_of(9, add, client=2, low_water=8), add)
    assert not applier.apply(push_of(7, add, client=1), add)
    assert applier.apply(push_of(8, add, client=1), add)
    assert values_of(memory, shards)[SCALAR] == 5.0
    assert memory.ledger.duplicates == 3
    memory.close()
