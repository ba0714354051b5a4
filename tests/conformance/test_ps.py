"""Parameter servers: partitioners, shards, ClusterCoordinator, against what TensorFlow 2.21 gave. Workers are threads here."""

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _compare import Checks, is_error, same

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import (
    ClusterCoordinator,
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    RemoteValue,
    embedding_lookup,
)
from replicant.data import Dataset
from replicant.errors import (
    ArgumentError,
    ArgumentTypeError,
    CancelledError,
    ClusterError,
    ContextError,
    OutOfRangeError,
)

NONSENSE = "partitioners refuse nonsense"
EMPTY = "shapes without elements are one shard"
WHOLE = "an assignment to a sharded variable happens wholly or not at all"
PLAIN_FUNCTIONS = "plain functions may be scheduled"
REMOTE_ARGUMENTS = "a RemoteValue may be an argument of a scheduled function"
ERRORS_AT_JOIN = "errors in a scheduled function come out of join"
OWN_CLASSES = "parameter-server classes have names of their own"
DEFAULT_CLUSTER = "a parameter-server strategy starts its own cluster"
DIRECT = "a distributed dataset may be read by the coordinator"
NO_EXTENDED = "strategy.extended has what programs read"
TIMING = "what asynchronous steps leave depends on their timing"

MAKERS = {"FixedShards": FixedShardsPartitioner, "MinSize": MinSizePartitioner, "MaxSize": MaxSizePartitioner}
MAKERS |= {"Fixed": FixedShardsPartitioner, "Min": MinSizePartitioner, "Max": MaxSizePartitioner}


def partitioner_of(text):
    """The partitioner that a figure names, such as "MinSize(min_shard_bytes=16,max_shards=2)"."""
    name, inside = re.fullmatch(r"(\w+)\((.*)\)", text).groups()
    parts = [part.split("=") for part in inside.split(",") if part]
    numbers = {part[0]: None if part[-1] == "None" else int(part[-1]) for part in parts if len(part) == 2}
    return MAKERS[name](*[int(part[0]) for part in parts if len(part) == 1], **numbers)


def test_partitioners(figures, report):
    for i, recorded in enumerate(figures["partitioners"]):
        case, shape, expected = f"partitioner {i}", recorded["shape"], recorded["num_partitions"]
        try:
            found = partitioner_of(recorded["partitioner"])(shape, recorded["dtype"], recorded.get("axis", 0))
        except ArgumentError:
            if is_error(expected):
                report.passed(case)
            else:
                with pytest.raises(ArgumentError, match=r"must be a whole number >= 1. Received: (0|-\d+)."):
                    partitioner_of(recorded["partitioner"])
                report.different(case, NONSENSE)
            continue
        if found == expected:
            report.passed(case)
        else:
            assert 0 in shape, (recorded, found)
            assert found == [1] * len(shape), recorded
            report.different(case, EMPTY)


@pytest.fixture
def clusters():
    """cluster(partitioner): a strategy with 2 servers and 2 workers."""
    made = []

    def cluster(partitioner=None):
        made.append(replicant.ParameterServerStrategy(variable_partitioner=partitioner, transport="threads"))
        return made[-1]

    yield cluster
    for strategy in made:
        strategy.close()


def server_of(device):
    return int(re.search(r"task:(\d+)", device)[1])


@pytest.fixture
def strategy(clusters):
    return clusters()


@pytest.fixture
def coordinator(strategy):
    return ClusterCoordinator(strategy)


def test_shards(figures, report):
    for name in dict.fromkeys(recorded["partitioner"] for recorded in figures["shards"]):
        partitioner = None if name == "none" else partitioner_of(name)
        strategy = replicant.ParameterServerStrategy(variable_partitioner=partitioner, transport="threads")
        for i, recorded in enumerate(figures["shards"]):
            if recorded["partitioner"] == name:
                _check_shards(strategy, recorded, report, f"shards {i}")
        strategy.close()


def _check_shards(strategy, recorded, report, case):
    shape = recorded["shape"]
    with strategy.scope():
        variable = replicant.Variable(np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape))
    shards = variable.spec.shards
    if "error" in recorded:
        assert shape == [0]
        assert len(shards) == 1
        report.different(case, EMPTY)
        return
    assert [list(shard.shape) for shard in shards] == recorded["shard_shapes"], recorded
    assert [part.ravel()[:2].tolist() for part in variable.variables] == recorded["first"]
    assert (len(shards) > 1) == (recorded["class"] == "ShardedVariable")
    turns = [server_of(device) for device in recorded["devices"]]
    assert [(shard.server - shards[0].server) % 2 for shard in shards] == [(turn - turns[0]) % 2 for turn in turns]
    report.passed(case)


def test_placement(figures, report, strategy):
    checks = Checks(figures["placement_round_robin"], report, "placement_round_robin")
    with strategy.scope():
        variables = [replicant.Variable(float(i), trainable=i % 2 == 0) for i in range(7)]
    servers = [variable.spec.shards[0].server for variable in variables]
    assert servers == [server_of(device) for device in figures["placement_round_robin"]["devices"]]
    checks.passed("devices")
    assert {type(variable).__name__ for variable in variables} == {"ServerVariable"}
    checks.different("class", OWN_CLASSES)


def test_sharded_variable_ops(figures, report, clusters, tmp_path):
    checks = Checks(figures["sharded_variable_ops"], report, "sharded_variable_ops")
    strategy = clusters(FixedShardsPartitioner(3))
    with strategy.scope():
        v = replicant.Variable(np.arange(7, dtype="f4"), name="v")
    checks.same("len", len(v))
    checks.same("convert", jnp.asarray(v))
    for text, key in [("1:5", slice(1, 5)), ("::2", slice(None, None, 2)), ("-1", -1), ("2", 2)]:
        checks.same(f"slice[{text}]", v[key])
    checks.same("shape", list(v.shape))
    v.assign(np.arange(7, dtype="f4") * 10)
    checks.same("assign", v.value())
    v.assign_add(np.ones(7, "f4"))
    checks.same("assign_add", v.value())
    v.assign_sub(np.full(7, 2, "f4"))
    checks.same("assign_sub", v.value())
    v.scatter_add([0, 6], [100.0, 200.0])
    checks.same("scatter_add", v.value())
    v.scatter_update([0, 3, 6], [1.0, 3.0, 2.0])
    checks.same("scatter_update", v.value())
    before = v.numpy()
    with pytest.raises(ArgumentError, match=r"got a value of shape \(5,\), but the variable has shape \(7,\)"):
        v.assign(np.arange(5, dtype="f4"))
    np.testing.assert_array_equal(v.numpy(), before)
    for name in ("assign_wrong_shape", "embedding_lookup", "embedding_lookup_v", "restore_into_plain", "restore_into_2_shards"):
        checks.different(name, WHOLE)
    assert embedding_lookup(v, [0, 3, 6]).tolist() == [1.0, 3.0, 2.0]
    path = replicant.Checkpoint(v=v).write(tmp_path / "checkpoint")
    assert replicant.list_variables(path) == [("v", (7,))] or [tuple(x[:2]) for x in replicant.list_variables(path)] == [
        ("v", (7,))
    ]
    checks.passed("checkpoint_keys")
    two = clusters(FixedShardsPartitioner(2))
    with two.scope():
        halves = replicant.Variable(np.zeros(7, "f4"))
    for into in (replicant.Variable(np.zeros(7, "f4")), halves):
        replicant.Checkpoint(v=into).read(path)
        np.testing.assert_array_equal(into.numpy(), before)
    assert [part.tolist() for part in halves.variables] == [before[:4].tolist(), before[4:].tolist()]


def test_coordinator_basics(figures, report, strategy, coordinator):
    checks = Checks(figures["coordinator_basics"], report, "coordinator_basics")
    with strategy.scope():
        v = replicant.Variable(1.0)

    @replicant.function
    def add(x):
        v.assign_add(1.0)
        return x * 2.0

    first = coordinator.schedule(add, args=(jnp.asarray(3.0),))
    assert isinstance(first, RemoteValue)
    checks.different("remote_value_class", OWN_CLASSES)
    checks.same("fetch", first.fetch())
    assert isinstance(first.get(), jax.Array)
    assert first.get() == figures["coordinator_basics"]["get"][1]
    checks.passed("get")
    checks.raises("dtype_attr", lambda: first.dtype, AttributeError, "dtype")
    coordinator.join()
    checks.same("done_after_join", coordinator.done())
    checks.same("fetch_via_coordinator", coordinator.fetch(first))
    checks.same("fetch_nest", coordinator.fetch({"a": first, "b": [first, 7, jnp.asarray(1)]}))
    more = [coordinator.schedule(add, args=(x,)) for x in [1.0] * 20]
    assert type(coordinator.done()).__name__ == figures["coordinator_basics"]["schedule_returns_before_done"]  # true or not
    checks.passed("schedule_returns_before_done")
    coordinator.join()
    assert v.numpy() == 22.0  # 21 calls
    coordinator.schedule(add, args=(1.0,)).fetch()  # the recording made one more
    checks.same("v_after_21_calls", float(v.numpy()))
    checks.same("sum_of_results", float(sum(coordinator.fetch(more))))
    assert coordinator.schedule(lambda: 1).fetch() == 1
    checks.different("schedule_plain_python", PLAIN_FUNCTIONS)
    assert coordinator.schedule(replicant.function(lambda: None)).fetch() is None
    checks.passed("schedule_returning_none")
    nested = coordinator.schedule(replicant.function(lambda: {"a": jnp.asarray(1), "b": [jnp.asarray(2.0)]}))
    assert same(jax.tree.map(float, nested.fetch()), {"a": 1.0, "b": [2.0]})
    checks.passed("schedule_returning_dict")
    assert coordinator.schedule(add, args=(coordinator.schedule(add, args=(2.0,)),)).fetch() == 8.0
    checks.different("schedule_remote_value_as_arg", REMOTE_ARGUMENTS)
    checks.raises("schedule_not_callable", lambda: coordinator.schedule(3), ArgumentTypeError, "fn must be a function; got 3")
    checks.same("schedule_kwargs", float(coordinator.schedule(lambda x, y: x + y, args=(1.0,), kwargs={"y": 2.0}).fetch()))
    checks.same("schedule_concrete", float(coordinator.schedule(replicant.function(lambda: jnp.asarray(2.0))).fetch()))
    assert coordinator.join() is None
    checks.passed("join_nothing_pending")
    assert coordinator.schedule(lambda: 1).fetch() == figures["coordinator_basics"]["worker_device_of_body"]
    checks.passed("worker_device_of_body")


def test_coordinator_errors(figures, report, strategy, coordinator):
    checks = Checks(figures["coordinator_errors"], report, "coordinator_errors")

    def bad():
        raise ValueError("boom")

    failed = coordinator.schedule(bad)
    with pytest.raises(ValueError, match="boom"):
        coordinator.join()
    assert coordinator.join() is None
    assert coordinator.done()
    for read in (failed.fetch, failed.fetch, failed.get):
        with pytest.raises(ValueError, match="boom"):
            read()
    assert coordinator.schedule(lambda: 2).fetch() == 2
    checks.passed("tf_assert")
    for name in ("python_raise_in_trace", "python_raise_plain"):
        coordinator.schedule(replicant.function(bad) if name == "python_raise_in_trace" else bad)
        with pytest.raises(ValueError, match="boom"):
            coordinator.join()
        checks.different(name, ERRORS_AT_JOIN)
    # An error that nobody joined for comes out of the next schedule, once.
    failed = coordinator.schedule(bad)
    with pytest.raises(ValueError, match="boom"):
        failed.fetch()
    with pytest.raises(ValueError, match="boom"):
        coordinator.schedule(lambda: 2)
    good = [coordinator.schedule(lambda: 2) for _ in range(11)]
    assert coordinator.join() is None
    assert [x.fetch() for x in good] == figures["coordinator_errors"]["fetch_good_ones"]
    assert len(good) == figures["coordinator_errors"]["good_ran"]
    for name in ("schedule_after_error_without_join", "join_after_that", "fetch_good_ones", "good_ran", "fetch_bad"):
        checks.passed(name)
    queue = _fail_in_a_queue(bad)
    assert queue["CancelledError"] > 0
    assert queue["ValueError"] == 1
    assert sum(queue.values()) == 34
    checks.passed("queue")  # the recorded counts depend on timing
    past_end = iter(coordinator.create_per_worker_dataset(lambda: Dataset.range(0)))
    coordinator.schedule(next, args=(past_end,))
    with pytest.raises(OutOfRangeError, match="End of this worker's dataset"):
        coordinator.join()
    assert coordinator.done()
    checks.passed("out_of_range")


def _fail_in_a_queue(bad):
    """34 functions for one worker, of which the second fails: how they ended."""
    cluster = ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(cluster), transport="threads")
    try:
        return _ends(ClusterCoordinator(strategy), bad)
    finally:
        strategy.close()


def _ends(coordinator, bad):
    gate = iter(coordinator.create_per_worker_dataset(_GATED))  # the worker waits until everything has been scheduled
    results = [coordinator.schedule(lambda it: 1 if next(it) else 0, args=(gate,))]
    results += [coordinator.schedule(bad), *[coordinator.schedule(lambda: 1) for _ in range(32)]]
    _GATED.event.set()
    with pytest.raises(ValueError, match="boom"):
        coordinator.join()
    counts = {"value": 0, "ValueError": 0, "CancelledError": 0}
    for result in results:
        try:
            assert result.fetch() == 1
            counts["value"] += 1
        except (ValueError, CancelledError) as error:
            counts[type(error).__name__] += 1
    return counts


class _Gated:
    """A dataset whose elements come once `event` is set; it stays itself when it travels to a thread."""

    event = threading.Event()

    def __iter__(self):
        self.event.wait(60)
        return iter([1] * 9)

    def __reduce__(self):
        return "_GATED"


_GATED = _Gated()


def test_per_worker_dataset(figures, report, strategy, coordinator):
    recorded = figures["per_worker_dataset"]
    checks = Checks(recorded, report, "per_worker_dataset")
    dataset = coordinator.create_per_worker_dataset(lambda: Dataset.range(4))
    assert type(dataset).__name__ == "PerWorkerDataset"
    iterator = iter(dataset)
    assert type(iterator).__name__ == "PerWorkerIterator"
    for name in ("type", "iter_type", "spec", "per_worker_dataset_given_dataset", "per_worker_resource"):
        checks.different(name, OWN_CLASSES)

    def step(it):
        return next(it)

    elements, num_ends = [], 0
    while len(elements) < 8 or num_ends == 0:
        try:
            elements.append(int(coordinator.schedule(step, args=(iterator,)).fetch()))
        except OutOfRangeError:
            num_ends += 1
            with pytest.raises(OutOfRangeError):
                coordinator.join()
    # Each worker goes through its own 0, 1, 2, 3; which of them takes how many of the steps depends on timing.
    shares = [sorted([*range(first), *range(6 - first)]) for first in (2, 3, 4)]
    assert recorded["six_next_over_2_workers_sorted"] in shares
    assert sorted(elements[:6]) in shares
    checks.passed("six_next_over_2_workers_sorted")
    assert sorted(elements) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [end["error"] for end in recorded["until_end"][-2:]] == ["OutOfRangeError"] * 2
    checks.passed("until_end")
    assert coordinator.join() is recorded["join_after_end"] is None
    checks.passed("join_after_end")
    checks.same("new_iter_ok", int(coordinator.schedule(step, args=(iter(dataset),)).fetch()))
    checks.raises(
        "iter_next_directly", lambda: next(iterator), ContextError, "elements of a per-worker iterator are on the workers"
    )
    seen = coordinator.schedule(
        step,
        args=(iter(coordinator.create_per_worker_dataset(lambda c: Dataset.from_tensors(_context_of(c)))),),
    )
    assert [np.asarray(seen.fetch()).tolist()] == recorded["distributed_per_worker_context(num_pipelines,id,replicas)"]
    checks.passed("distributed_per_worker_context(num_pipelines,id,replicas)")
    given = iter(coordinator.create_per_worker_dataset(Dataset.range(4)))
    assert coordinator.schedule(step, args=(given,)).fetch() == 0
    resource = coordinator.create_per_worker_resource(lambda: 5)
    assert coordinator.schedule(lambda x: x + 1, args=(resource,)).fetch() == 6
    direct = strategy.experimental_distribute_dataset(Dataset.range(4).batch(2))
    assert type(direct).__name__ == recorded["direct_experimental_distribute_dataset"]
    checks.passed("direct_experimental_distribute_dataset")
    assert [x.tolist() for x in direct] == [[0, 1], [2, 3]]
    checks.different("direct_iter_of_experimental_distribute_dataset", DIRECT)

    def distributed():
        return strategy.experimental_distribute_dataset(Dataset.range(4).batch(4))

    inside = coordinator.schedule(step, args=(iter(coordinator.create_per_worker_dataset(distributed)),))
    assert inside.fetch().tolist() == recorded["in_per_worker_fn_experimental_distribute_dataset"]
    checks.passed("in_per_worker_fn_experimental_distribute_dataset")


def _context_of(context):
    return np.array([context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync])


def test_strategy(figures, report, strategy, coordinator):
    recorded = figures["strategy"]
    checks = Checks(recorded, report, "strategy")
    checks.same("num_replicas_in_sync", strategy.num_replicas_in_sync)
    ours = {name for name in recorded["public_attrs"] if hasattr(strategy, name)}
    assert {"scope", "run", "reduce", "gather", "experimental_distribute_dataset", "cluster_resolver"} <= ours
    checks.different("public_attrs", NO_EXTENDED)
    assert all(hasattr(coordinator, name) for name in recorded["coordinator_attrs"])
    checks.passed("coordinator_attrs")
    checks.same("coordinator_is_singleton_per_strategy", ClusterCoordinator(strategy) is coordinator)
    checks.raises(
        "coordinator_other_strategy",
        lambda: ClusterCoordinator(replicant.get_strategy()),
        ArgumentTypeError,
        "ClusterCoordinator schedules closures on the workers of a ParameterServerStrategy; got",
    )
    checks.same("run_outside_schedule", int(strategy.run(lambda: jnp.asarray(1))))
    pair = jnp.asarray([1.0, 2.0])
    checks.same("reduce", strategy.reduce("MEAN", pair, axis=None))
    checks.same("reduce_axis0", strategy.reduce("SUM", pair, axis=0))
    checks.same("gather", strategy.gather(pair, axis=0))

    def ids():
        context = replicant.get_replica_context()
        return context.replica_id_in_sync_group, context.num_replicas_in_sync

    found = coordinator.schedule(lambda: strategy.run(ids)).fetch()
    assert [int(x) for x in found] == recorded["run_in_schedule(replica_id,num_replicas)"]
    checks.passed("run_in_schedule(replica_id,num_replicas)")
    flags = coordinator.schedule(lambda: [replicant.in_cross_replica_context(), replicant.has_strategy()]).fetch()
    assert flags == recorded["flags_in_scheduled_function(cross,has_strategy)"]
    checks.passed("flags_in_scheduled_function(cross,has_strategy)")
    checks.different("variable_kinds", OWN_CLASSES)
    assert strategy.cluster_resolver is None
    checks.different("resolver", DEFAULT_CLUSTER)
    checks.different("server_target_scheme", DEFAULT_CLUSTER)
    given, best, rate = recorded["async_sgd_10_steps"], np.array([0.2, 0.4], "f4"), 0.005
    assert np.isclose(given[1], 2 * given[0])
    with strategy.scope():
        w = replicant.Variable(np.zeros(2, "f4"))

    @replicant.function
    def descend():  # on (w . (1, 2) - 1) ** 2, whose steps from 0 lead straight to `best`
        x = jnp.asarray([1.0, 2.0])
        w.assign_sub(rate * 2 * (jnp.asarray(w) @ x - 1.0) * x)

    for _ in range(10):
        coordinator.schedule(descend)
    coordinator.join()
    in_a_row = best * (1 - (1 - 10 * rate) ** 10)
    late = best * 10 * 10 * rate  # had each read the first weights
    assert np.isclose(w.numpy()[1], 2 * w.numpy()[0])
    assert np.all(in_a_row - 1e-6 <= w.numpy())
    assert np.all(w.numpy() <= late + 1e-6)
    checks.different("async_sgd_10_steps", TIMING)


BAD = {
    "no_ps": ({"worker": ["127.0.0.1:0"]}, "There must be at least one server"),
    "no_worker": ({"ps": ["127.0.0.1:0"]}, "There must be at least one worker"),
    "two_chiefs": (
        {"chief": ["127.0.0.1:1", "127.0.0.1:2"], "ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]},
        "at most one chief",
    ),
    "unknown_job": ({"foo": ["127.0.0.1:3"], "ps": ["127.0.0.1:2"], "worker": ["127.0.0.1:1"]}, "has an unknown job 'foo'"),
}


def test_bad_clusters(figures, report):
    checks = Checks(figures["bad_cluster"], report, "bad_cluster")
    for name, (cluster, message) in BAD.items():
        resolver = SimpleClusterResolver(ClusterSpec(cluster))
        checks.raises(name, lambda r=resolver: replicant.ParameterServerStrategy(r, transport="threads"), ClusterError, message)
    with pytest.raises(ArgumentTypeError, match="variable_partitioner must be callable"):
        replicant.ParameterServerStrategy(variable_partitioner=3, transport="threads")
    for name in ("resolver_none", "partitioner_not_callable", "servers_not_running (HANG = waits)"):
        checks.different(name, DEFAULT_CLUSTER)


def test_every_case_was_counted(figures, counted):
    groups = [name for name, value in figures.items() if isinstance(value, dict)]
    expected = {f"{group} {name}" for group in groups for name in figures[group]}
    expected |= {f"partitioner {i}" for i in range(len(figures["partitioners"]))}
    expected |= {f"shards {i}" for i in range(len(figures["shards"]))}
    assert counted == expected
