"""An update that fails, whatever it raises and wherever, is as if it had never begun: a read gives what was acknowledged last."""

import dataclasses
import gc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replicant.coordinator.ray._server import ServerState, Snapshot
from replicant.coordinator.servers import _store
from replicant.coordinator.servers._apply import Applier
from replicant.coordinator.servers._ledger import NBYTES, PushName
from replicant.coordinator.servers._placing import Shard
from replicant.coordinator.servers._push import Change, Operation, Push
from replicant.coordinator.servers._server import Server
from replicant.coordinator.servers._store import ServerMemory
from replicant.coordinator.wire._channel import Channel
from replicant.coordinator.wire._memory import pages

VECTOR, TABLE, SLOT, SCALAR = range(4)  # SLOT is the optimizer's, beside TABLE
SHAPES = [(3,), (4, 2), (4, 2), ()]
RULE, FLOAT = 9, np.dtype("float64")


@pytest.fixture(autouse=True, scope="module")
def no_garbage_collection():
    """NumPy formats some errors while another one is set, and Hypothesis's callback of the collector must not be called then."""
    gc.disable()
    yield
    gc.enable()


class Oops(Exception):
    pass


class Rule:
    """Gradient descent that counts in a slot, and raises where it is told to."""

    def __init__(self, *_):
        self.error = None
        self.late = False

    def slots(self, shard):
        return [SLOT] if shard == TABLE else []

    def update(self, step, learning_rate, items, outs):
        if self.error is not None and not self.late:
            raise self.error("oops")
        for (_, gradient, old), new in zip(items, outs, strict=True):
            values = [old[0] - gradient, *[slot + 1.0 for slot in old[1:]]]
            for value, out in zip(values, new, strict=True):
                np.copyto(out, value)
        if self.error is not None:
            raise self.error("oops")


def shards_of():
    shards, offset = [], pages(NBYTES)
    for index, shape in enumerate(SHAPES):
        shards.append(Shard(0, index, offset, 0, shape[0] if shape else 0, shape))
        offset += 2 * pages(8 * int(np.prod(shape, dtype=int)))
    return shards, offset


class LocalServer:
    """A server that shares memory, as processes and threads have it. Readers look at it through a memory of their own."""

    def __init__(self):
        self.shards, nbytes = shards_of()
        self.memory = ServerMemory.create()
        self.memory.values.grow(nbytes)
        self._channel, self._other = Channel.pair("a test", "a server")
        self._server = Server(0, self.memory, self._channel)
        self._reader = self.memory.duplicate()
        self.applier: Applier = self._server._applier
        self._server._add_shards([(shard, FLOAT.name) for shard in self.shards])

    def push(self, push):
        try:
            answer = self._server._reply(dataclasses.replace(push, operations=packed(push.operations)), _Inline())
        except BaseException:  # noqa: BLE001 - whatever the rule raised
            return "raised"
        return "raised" if isinstance(answer, bytes) else answer

    def read(self, shard):
        out = np.empty(SHAPES[shard])
        self._reader.view(self.shards[shard], FLOAT).read_into(out)
        return out

    def close(self):
        self._channel.close()
        self._other.close()
        for memory in (self.memory, self._reader):
            memory.close()


class _Inline:
    """An outbox of which nothing is used: the arrays come as they are."""

    def see(self, nbytes):
        pass

    def unpack(self, array):
        return array


def packed(operations):
    return [([(c.shard, c.values, c.rows) for c in op.changes], *op[:1], *op[2:]) for op in operations]


class RayServer:
    """A server as Ray's actor has it. The reader keeps what it has, and asks for what is new."""

    def __init__(self):
        shards, _ = shards_of()
        zeros = {shard.index: np.zeros(shard.shape) for shard in shards}
        self._state = ServerState(0, Snapshot([], {}, {}, None))
        self._state._add_shards([(shard, FLOAT.name) for shard in shards], zeros)
        self.applier = self._state._applier
        self.memory = self._state._memory
        self._copies: dict[int, tuple[tuple[int, int] | None, np.ndarray]] = {i: (None, zeros[i].copy()) for i in zeros}

    def push(self, push):
        try:
            answer, _ = self._state.ask(push)
        except BaseException:  # noqa: BLE001 - whatever the rule raised
            return "raised"
        return "raised" if isinstance(answer, bytes) else answer

    def read(self, shard):
        version, copy = self._copies[shard]
        for news in self._state.pull({shard: version}).news.values():
            if news.rows is None:
                copy[...] = news.values
            else:
                copy[news.rows] = news.values
            self._copies[shard] = news.version, copy
        return copy.copy()

    def close(self):
        self.memory.close()


SERVERS = {"local": LocalServer, "ray": RayServer}


@pytest.fixture(autouse=True)
def short_reads(monkeypatch):
    monkeypatch.setattr(_store, "_READ_SECONDS", 0.5)


class Expected:
    """What the values are if pushes count wholly or not at all."""

    def __init__(self):
        self.values = [np.zeros(shape) for shape in SHAPES]

    def apply(self, operations):
        for op in operations:
            for change in op.changes:
                where = ... if change.rows is None else change.rows
                if op.kind == "assign":
                    self.values[change.shard][where] = change.values
                elif op.kind == "add":
                    self.values[change.shard][where] += change.values
                else:
                    self.values[change.shard][where] -= change.values
                    if change.shard == TABLE:
                        self.values[SLOT][where] += 1.0


def numbers(shape):
    return st.integers(-5, 5).map(lambda n: np.full(shape, float(n)))


def dense(kind, shard):
    return numbers(SHAPES[shard]).map(lambda values: Operation(kind, [Change(shard, values)], *rule_of(kind)))


def rows_of(kind):
    some = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True).map(lambda rows: np.array(sorted(rows)))
    return st.tuples(some, st.integers(-5, 5)).map(
        lambda p: Operation(kind, [Change(TABLE, np.full((p[0].size, 2), float(p[1])), p[0])], *rule_of(kind))
    )


def rule_of(kind):
    return (RULE,) if kind == "apply" else ()


KINDS = ("assign", "add", "apply")
OPERATIONS = st.one_of(*[dense(kind, shard) for kind in KINDS for shard in (VECTOR, TABLE, SCALAR)], *map(rows_of, KINDS))
BROKEN = st.sampled_from(
    [
        Operation("add", [Change(TABLE, np.ones((2, 2)), np.array([1, 4]))]),  # a row that is not there
        Operation("assign", [Change(TABLE, np.ones((3, 7)), np.array([0, 1, 2]))]),  # rows of another shape: fails in the write
        Operation("assign", [Change(VECTOR, np.ones(5))]),
        Operation("apply", [Change(VECTOR, np.ones(3))], RULE + 1),  # an optimizer that nobody has told it of
        Operation("nonsense", [Change(VECTOR, np.ones(3))]),
    ]
)
ERRORS = st.sampled_from([Oops, MemoryError, KeyboardInterrupt, SystemExit])
PUSHES = st.tuples(st.lists(OPERATIONS, min_size=1, max_size=4), st.none() | ERRORS, st.booleans(), st.none() | BROKEN)
MEND = ([Operation("assign", [Change(VECTOR, np.full(3, 5.0))])], None, False, None)
FAIL = ([Operation("apply", [Change(VECTOR, np.ones(3))], RULE)], Oops, False, None)


@pytest.mark.parametrize("kind", SERVERS)
@given(pushes=st.lists(PUSHES, max_size=8))
@example(pushes=[FAIL, MEND])
@example(pushes=[FAIL, FAIL, MEND])
def test_a_read_gives_the_last_acknowledged_value(kind, pushes):
    server, expected, rule = SERVERS[kind](), Expected(), Rule()
    server.applier.rules[RULE] = rule
    try:
        for i, (operations, error, late, broken) in enumerate(pushes):
            rule.error, rule.late = error, late
            whole = [*operations, *([] if broken is None else [broken])]
            said = server.push(Push(PushName(1, i + 1, 1), 0, 0, 0, 0, whole))
            fails = broken is not None or (error is not None and any(op.kind == "apply" for op in operations))
            assert said == ("raised" if fails else True)
            if not fails:
                expected.apply(operations)
            for shard, value in enumerate(expected.values):
                np.testing.assert_array_equal(server.read(shard), value)
        assert server.memory.ledger.updates == sum(
            broken is None and (error is None or all(op.kind != "apply" for op in operations))
            for operations, error, _, broken in pushes
        )
    finally:
        server.close()


class _Interrupted:
    """Stands in for cells of the books, and raises once, at a certain store."""

    def __init__(self, cells, clock):
        self._cells, self._clock = cells, clock

    def __getitem__(self, key):
        return self._cells[key]

    def __setitem__(self, key, value):
        self._clock()
        self._cells[key] = value._cells if isinstance(value, _Interrupted) else value


MIXED = [
    Operation("add", [Change(TABLE, np.ones((2, 2)), np.array([0, 3])), Change(VECTOR, np.ones(3))]),
    Operation("apply", [Change(TABLE, np.ones((1, 2)), np.array([2])), Change(SCALAR, np.array(1.0))], RULE),
    Operation("add", [Change(TABLE, np.ones((4, 2)))]),
]


@pytest.mark.parametrize("again", [False, True], ids=["once", "while it is undone too"])
def test_interrupted_at_any_moment_a_push_counts_wholly_or_not_at_all(again):
    """As by KeyboardInterrupt in the midst of it: the server goes on, and with it those that wait for its values."""
    outcomes = []
    for moment in range(200):
        server, expected = LocalServer(), Expected()
        server.applier.rules[RULE] = Rule()
        ledger, left = server.memory.ledger, [moment]

        def clock(left=left):
            left[0] -= 1
            if left[0] == -1 or (again and left[0] == -3):
                raise KeyboardInterrupt

        names = ("_cells", "started", "done", "in_place", "staleness")
        cells = {name: getattr(ledger, name) for name in names}
        for name in names:
            setattr(ledger, name, _Interrupted(cells[name], clock))
        said = server.push(Push(PushName(1, 1, 1), 1, 0, 0, 0, MIXED))
        for name in names:
            setattr(ledger, name, cells[name])
        if said == "raised" and again:
            server.push(Push(PushName(1, 9, 1), 0, 0, 0, 0, [Operation("add", [Change(VECTOR, np.zeros(3))])]))
        counts = server.push(Push(PushName(2, 1, 1), 1, 0, 0, 0, MIXED))  # the same push again
        expected.apply(MIXED)
        for shard, value in enumerate(expected.values):
            np.testing.assert_array_equal(server.read(shard), value, err_msg=f"interrupted at store {moment}")
        server.close()
        outcomes.append(counts)
        if said is True:
            break
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {True, False}
    assert len(outcomes) > 20
