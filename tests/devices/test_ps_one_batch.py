"""A worker that ends at any moment of a push: whoever calls its function again first does to its end what was begun.

``tests/faults/test_ps_one_batch.py`` kills processes; here workers are threads, which end as if they had been killed.
"""

import threading

import numpy as np
import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator
from replicant.coordinator.servers._site import current_site

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # workers end by SystemExit here
MOMENTS = {"before": 2.0, "noted": 1.0, "between": 1.0, "sent": 1.0, "applied": 1.0}  # whose batch the servers have then


class Calls:
    """Counts calls; it stays itself when it travels to a thread."""

    lock = threading.Lock()
    count = 0

    def is_first(self):
        with self.lock:
            self.count += 1
            return self.count == 1

    def __reduce__(self):
        return "CALLS"


CALLS = Calls()


@pytest.fixture(scope="module")
def strategy():
    spec = ClusterSpec({"ps": ["127.0.0.1:0"] * 2, "worker": ["127.0.0.1:0"] * 2})
    strategy = replicant.ParameterServerStrategy(SimpleClusterResolver(spec), transport="threads")
    yield strategy
    strategy.close()


@pytest.fixture(autouse=True)
def no_leaked_threads():
    """The servers and workers of a module's strategy live as long as the module."""
    CALLS.count = 0


def ends_in(moment):
    """This worker's next push ends it. A thread cleans up where a process that is killed does not: that is left out."""
    client = current_site().client
    intent, links = client.intent, client.links
    intent.drop = lambda: None

    def end(*_, **__):
        raise SystemExit

    if moment == "before":
        intent.begin = end
    elif moment == "noted":
        links[0].send = end
    elif moment == "between":
        links[1].send = end
    elif moment == "sent":
        links[0].channel.receive = end
    else:
        del intent.drop
        ended = intent.end

        def end_both():
            ended()
            end()

        intent.end = end_both


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_servers_have_one_batch(strategy, moment):
    coordinator = ClusterCoordinator(strategy)
    before = coordinator.stats()
    with strategy.scope():
        big = [replicant.Variable(np.zeros(1000, "f4")) for _ in range(2)]  # one on each server
        tables = [replicant.Variable(np.zeros((4, 1), "f4")) for _ in range(2)]
    assert {v.spec.shards[0].server for v in big} == {v.spec.shards[0].server for v in tables} == {0, 1}
    calls = CALLS

    @replicant.function
    def add(x, rows):
        for variable in big:
            variable.assign_add(x)
        for table in tables:
            table.scatter_add(rows, np.ones((1, 1), "f4"))

    def step():
        drawn = 1 if calls.is_first() else 2
        if drawn == 1:
            ends_in(moment)
        add(np.full(1000, drawn, "f4"), np.full(1, drawn))
        return drawn

    value = coordinator.schedule(step)
    coordinator.join(timeout=100)
    batch = MOMENTS[moment]
    assert value.fetch() == 2  # what the second call returned
    assert [set(v.numpy().tolist()) for v in big] == [{batch}, {batch}]
    assert [t.numpy().ravel().tolist() for t in tables] == [np.eye(4)[int(batch)].tolist()] * 2
    stats = coordinator.stats()
    assert stats["replaced_workers"] - before["replaced_workers"] == 1
    assert stats["mixed_closures"] == before["mixed_closures"]
    coordinator.schedule(add, args=(np.full(1000, 10.0, "f4"), np.zeros(1, int)))  # and all goes on
    coordinator.join(timeout=100)
    assert [set(v.numpy().tolist()) for v in big] == [{batch + 10.0}, {batch + 10.0}]


def test_a_push_to_one_server_is_not_completed_by_another_batch_on_the_other(strategy):
    """The first batch has rows of one server only, the second of both."""
    coordinator = ClusterCoordinator(strategy)
    with strategy.scope():
        one, two = (replicant.Variable(0.0) for _ in range(2))
    assert one.spec.shards[0].server != two.spec.shards[0].server
    calls = CALLS

    @replicant.function
    def add_to_both():
        one.assign_add(2.0)
        two.assign_add(2.0)

    def step():
        if calls.is_first():
            ends_in("applied")
            one.assign_add(1.0)
        else:
            add_to_both()

    coordinator.schedule(step)
    coordinator.join(timeout=100)
    assert (float(one.numpy()), float(two.numpy())) == (1.0, 0.0)


def test_changes_in_several_pushes_may_be_of_two_batches_and_are_counted(strategy):
    coordinator = ClusterCoordinator(strategy)
    before = coordinator.stats()["mixed_closures"]
    with strategy.scope():
        first, second = (replicant.Variable(0.0) for _ in range(2))
    calls = CALLS

    def step():
        drawn = 1.0 if calls.is_first() else 2.0
        first.assign_add(drawn)
        first.numpy()  # what has been changed is pushed before it is read
        if drawn == 1.0:
            raise SystemExit
        second.assign_add(drawn)

    coordinator.schedule(step)
    coordinator.join(timeout=100)
    assert (float(first.numpy()), float(second.numpy())) == (1.0, 2.0)
    assert coordinator.stats()["mixed_closures"] - before == 1
