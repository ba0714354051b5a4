"""What parameter servers say when something is wrong that the other tests do not come across."""

import os
import select
import sys
import threading

import keras
import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator, embedding_lookup
from replicant.coordinator._partitioners import Partitioner
from replicant.coordinator.processes import _cluster as cluster_module
from replicant.coordinator.processes._transport import Threads
from replicant.coordinator.servers import _allocator
from replicant.coordinator.servers import _store as store_module
from replicant.coordinator.servers._apply import Applier
from replicant.coordinator.servers._client import Client, Link
from replicant.coordinator.servers._ledger import PushName
from replicant.coordinator.servers._placing import Shard
from replicant.coordinator.servers._push import Change, Operation, Push
from replicant.coordinator.servers._site import current_site
from replicant.coordinator.servers._store import ServerMemory
from replicant.coordinator.wire._channel import Channel
from replicant.coordinator.wire._errors import pack_error, unpack_error
from replicant.coordinator.workers import _pickling
from replicant.errors import (
    ArgumentError,
    ArgumentTypeError,
    CancelledError,
    ClusterError,
    ContextError,
    GradientError,
    LostProcessError,
    ParameterServerError,
    UnserializableError,
    VariableError,
)

LOOPBACK = {"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"]}
ONE_OF_EACH = SimpleClusterResolver(ClusterSpec(LOOPBACK))


@pytest.fixture
def strategy():
    strategy = replicant.ParameterServerStrategy(ONE_OF_EACH, transport="threads")
    yield strategy
    strategy.close()


# Starting


class NoSecondWorker(Threads):
    """A transport whose second worker never says that it is ready."""

    def start(self, role, number, control, memories):
        if role == "worker" and number == 2:
            return _Nothing(control)
        return super().start(role, number, control, memories)


class NoWorkers(Threads):
    """A transport whose workers end as soon as they start."""

    def start(self, role, number, control, memories):
        if role == "worker":
            control.close()
            return _Nothing(control)
        return super().start(role, number, control, memories)


class _Nothing:
    pid = None

    def __init__(self, control):
        self._control = control

    def ended(self):
        return "ended with exit code 1"

    def kill(self):
        pass

    def wait(self, seconds):
        self._control.close()
        return True


def two_workers(transport):
    spec = ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"] * 2})
    return replicant.ParameterServerStrategy(SimpleClusterResolver(spec), transport=transport())


@pytest.mark.long
def test_who_did_not_start_is_named(monkeypatch):
    monkeypatch.setattr(cluster_module, "START_SECONDS", 3.0)
    with pytest.raises(LostProcessError, match=r"worker 1 did not start within 3 s\.$"):
        two_workers(NoSecondWorker)


def test_workers_that_end_before_they_are_ready():
    with pytest.raises(LostProcessError, match=r"worker \d ended with exit code 1 \d+ times before it was ready"):
        two_workers(NoWorkers)


@pytest.mark.parametrize(
    ("resolver", "error", "message"),
    [
        (3, ArgumentTypeError, "cluster_resolver must be a ClusterResolver, such as .* Received: 3."),
        (
            SimpleClusterResolver(ClusterSpec(LOOPBACK), task_type="worker", task_id=0),
            ClusterError,
            "This process is worker 0 of the cluster .*, but the coordinator starts workers and servers itself",
        ),
    ],
)
def test_clusters_that_cannot_be_started(resolver, error, message):
    with pytest.raises(error, match=message):
        replicant.ParameterServerStrategy(resolver, transport="threads")


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_addresses_on_other_machines(job):
    resolver = SimpleClusterResolver(ClusterSpec(LOOPBACK | {job: ["10.1.2.3:4000"]}))
    with pytest.raises(ClusterError, match=rf"The {job} at 10.1.2.3:4000 is on another machine"):
        replicant.ParameterServerStrategy(resolver, transport="threads")


def test_a_server_has_room_for_so_many_shards(strategy, monkeypatch):
    monkeypatch.setattr(_allocator, "MAX_SHARDS", 2)
    with strategy.scope():
        first = replicant.Variable(1.0)
        replicant.Variable(2.0)
        with pytest.raises(LostProcessError, match=r"Server 0 already holds 2 shards, the most it can hold. Use more servers."):
            replicant.Variable(3.0)
    assert first.numpy() == 1.0


def test_cloudpickle_is_missing(strategy, monkeypatch):
    monkeypatch.setattr(_pickling, "_types", [])
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UnserializableError, match="sends functions to its workers with cloudpickle, which is not installed: pip"):
        ClusterCoordinator(strategy).schedule(lambda: 1)


# While it runs


def test_a_server_that_is_not_replaced(strategy, monkeypatch):
    monkeypatch.setattr(cluster_module, "START_SECONDS", 0.01)
    with pytest.raises(LostProcessError, match=r"Server 0 was lost and not replaced within 0 s"):
        strategy.cluster._await_server(0, 0)


def test_a_closed_cluster_writes_to_nobody():
    strategy = replicant.ParameterServerStrategy(ONE_OF_EACH, transport="threads")
    coordinator, number = ClusterCoordinator(strategy), strategy.cluster._wake_out
    strategy.close()
    arrives, there = os.pipe()
    os.dup2(there, number)  # its descriptor is another's now
    with pytest.raises(LostProcessError, match=r"close\(\) has ended its workers and servers"):
        coordinator.join()
    assert not select.select([arrives], [], [], 0)[0]
    for fd in {arrives, there, number}:
        os.close(fd)


def test_a_server_that_is_lost_again_and_again():
    memory, (near, far), replaced = ServerMemory.create(), Channel.pair("the client", "server 0"), []
    far.close()
    client = Client(1, [memory], lambda server, generation: replaced.append(server))
    client.links = [Link(near, None)]
    try:
        with pytest.raises(LostProcessError, match=r"Server 0 was lost 10 times while taking a message\."):
            client.tell(("shards", []))
        assert replaced == [0] * 10
    finally:
        near.close()
        memory.close()


def test_a_peer_that_does_not_answer():
    near, far = Channel.pair("here", "server 3")
    try:
        with pytest.raises(LostProcessError, match=r"server 3 did not answer within 0 s while applying a push"):
            near.receive(0.01, "applying a push")
    finally:
        near.close()
        far.close()


def test_an_optimizer_that_a_server_does_not_know():
    memory = ServerMemory.create()
    try:
        push = Push(PushName(1, 1, 1), 0, 0, 0, 0, [])
        with pytest.raises(ParameterServerError, match=r"This server does not know optimizer 5\."):
            Applier(memory).apply(push, [Operation("apply", [Change(0, np.ones(1, "f4"))], rule=5)])
    finally:
        memory.close()


def test_a_server_that_stopped_while_it_wrote(monkeypatch):
    monkeypatch.setattr(store_module, "_READ_SECONDS", 0.01)
    memory = ServerMemory.create()
    try:
        memory.values.grow(1 << 20)
        view = memory.view(Shard(7, 0, 1 << 19, 0, 2, (2, 4)), np.dtype("f4"))
        memory.ledger.in_place[0] = 1  # odd: rows are being written
        with pytest.raises(LostProcessError, match=r"Server 7 did not finish writing within 0 s, so a shard of shape \(2, 4\)"):
            view.read_into(np.empty((2, 4), "f4"))
    finally:
        memory.close()


class Gate:
    """Holds a function in a thread back; it stays itself when it travels there."""

    opened = threading.Event()

    def __reduce__(self):
        return "GATE"


GATE = Gate()


def test_what_did_not_run_says_why(strategy):
    coordinator, gate = ClusterCoordinator(strategy), GATE

    def fail():
        gate.opened.wait(120)
        raise ZeroDivisionError("first")

    results = [coordinator.schedule(fail), *[coordinator.schedule(lambda: 1) for _ in range(5)]]
    GATE.opened.set()
    with pytest.raises(ZeroDivisionError, match="first"):
        coordinator.join()
    with pytest.raises(CancelledError, match="did not run, because another one had failed: ZeroDivisionError: first"):
        results[-1].fetch()
    GATE.opened.clear()
    results = [coordinator.schedule(lambda: gate.opened.wait(120)), *[coordinator.schedule(lambda: 1) for _ in range(5)]]
    threading.Timer(0.5, GATE.opened.set).start()  # a thread cannot be killed
    strategy.close()
    with pytest.raises(LostProcessError, match="The strategy was closed before this closure ended"):
        results[-1].fetch()


# Variables and optimizers


def test_rows_that_a_variable_does_not_have(strategy):
    with strategy.scope():
        v = replicant.Variable(np.zeros((4, 2), "f4"))
    for row in (-1, 4):
        with pytest.raises(VariableError, match=rf"has rows 0 to 3, but row {row} was requested\."):
            embedding_lookup(v, [0, row])


def test_optimizers_that_cannot_be_applied(strategy):
    with strategy.scope():
        v, sgd = keras.Variable([1.0]), keras.optimizers.SGD(0.1)
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        scaled.build([v])
    with pytest.raises(ArgumentError, match=r"SGD.apply: there is no gradient for any of the 1 variables\."):
        sgd.apply([None], [v])
    with pytest.raises(ArgumentError, match=r"LossScaleOptimizer does not work with parameter servers\. Use the optimizer itself"):
        scaled.apply([np.ones(1, "f4")], [v])
    with pytest.raises(ArgumentError, match=r"optimizer \d+, which was not made in the strategy.scope\(\) of this program\."):
        strategy.site.prepare(999, [])


def test_positions_in_fit(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(ArgumentError, match="takes x and y by position, and the rest by name; got 1 more"):
        model.fit(np.ones((2, 2)), np.ones((2, 1)), 32)


def test_places_that_are_no_worker():
    with pytest.raises(ContextError, match="exists on the workers of a ParameterServerStrategy only, and was used elsewhere"):
        current_site()
    with pytest.raises(NotImplementedError):
        Partitioner()((3,), "float32")


class Odd(Exception):
    """Cannot be made again from its text alone."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_errors_that_cannot_be_made_again_come_as_text():
    error = unpack_error(pack_error(Odd(1, 2), "the worker"))
    assert type(error) is ParameterServerError
    assert str(error) == "Odd: 1 and 2"
    assert error.__notes__[0].startswith("On the worker:")


def test_nobody_waits_for_a_watching_thread_that_has_failed(strategy):
    coordinator = ClusterCoordinator(strategy)
    coordinator.schedule(lambda: 1).fetch()

    def fail(*_):
        raise RuntimeError("no memory")

    strategy.relay.said = fail
    waiting = coordinator.schedule(lambda: 2)
    with pytest.raises(LostProcessError, match=r"The thread that watches workers and servers failed: RuntimeError: no memory"):
        coordinator.join(timeout=60)
    with pytest.raises(LostProcessError, match=r"The thread that watches workers and servers failed"):
        waiting.fetch(timeout=60)
    with pytest.raises(LostProcessError, match=r"The thread that watches workers and servers failed"):
        coordinator.schedule(lambda: 3)


class OwnSteps(keras.Model):
    def call(self, x):
        return x

    def train_step(self, data):
        return {}

    def test_step(self, data):
        return {}


def test_steps_of_a_model_are_not_ignored(strategy):
    with strategy.scope():
        model = OwnSteps()
        model.compile("sgd", "mse")
    rows = np.ones((4, 1), np.float32)
    with pytest.raises(ArgumentError, match=r"fit: OwnSteps has a train_step of its own, but under a ParameterServerStrategy"):
        model.fit(rows, rows, batch_size=2, verbose=0)
    with pytest.raises(ArgumentError, match=r"evaluate: OwnSteps has a test_step of its own, but under a ParameterServerStrategy"):
        model.evaluate(rows, rows, batch_size=2, verbose=0, pss_evaluation_shards=2)


def test_micro_batches_are_not_ignored(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    replicant.keras.use_micro_batches(model, 2)
    rows = np.ones((4, 1), np.float32)
    with pytest.raises(ArgumentError, match="use_micro_batches: under a ParameterServerStrategy, `fit` does not cut batches"):
        model.fit(rows, rows, batch_size=2, verbose=0)


def test_variables_on_servers_have_no_jacobian_and_no_custom_gradient(strategy) -> None:
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        v = replicant.Variable([1.0, 2.0], name="v")

    def jacobian():
        with replicant.GradientTape() as tape:
            y = v * 2.0
        return tape.jacobian(y, v)

    @replicant.custom_gradient
    def own():
        return v * 2.0, lambda upstream, variables: ([], [upstream])

    for fn in (jacobian, own):
        result = coordinator.schedule(replicant.function(fn))
        with pytest.raises(GradientError, match=r"'v' lies on parameter servers, where it has no jacobian and cannot be used in a"):
            coordinator.join()
        with pytest.raises(GradientError):
            result.fetch()
