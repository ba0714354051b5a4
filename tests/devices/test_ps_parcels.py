"""Per-worker datasets travel to each worker once, however many functions name them, and are dropped when nobody can any more."""

import gc
import time

import pytest

import replicant
from replicant.cluster import ClusterSpec, SimpleClusterResolver
from replicant.coordinator import ClusterCoordinator
from replicant.coordinator.workers._pickling import dumps
from replicant.errors import UnserializableError

NUM_WORKERS = 2
CLUSTER = SimpleClusterResolver(ClusterSpec({"ps": ["127.0.0.1:0"], "worker": ["127.0.0.1:0"] * NUM_WORKERS}))


class Counted:
    """Data that know how often they were packed and unpacked, and how many copies there are."""

    packed = unpacked = alive = 0

    def __reduce__(self):
        Counted.packed += 1
        return Counted.unpack, ()

    @staticmethod
    def unpack():
        Counted.unpacked += 1
        Counted.alive += 1
        return Copy()


class Copy:
    """What a worker has."""

    def __del__(self):
        Counted.alive -= 1


@pytest.fixture
def coordinator():
    strategy = replicant.ParameterServerStrategy(CLUSTER, transport="threads")
    yield ClusterCoordinator(strategy)
    strategy.close()


def test_a_dataset_travels_once_to_each_worker_and_is_dropped_with_its_last_name(coordinator):
    data = Counted()

    def numbers():
        return (number for number in range(1000) if data is not None)

    dataset = coordinator.create_per_worker_dataset(numbers)
    arguments, closed_over = iter(dataset), iter(dataset)
    values = [coordinator.schedule(next, args=(arguments,)) for _ in range(40)]
    values += [coordinator.schedule(lambda: next(closed_over)) for _ in range(40)]
    coordinator.join()
    assert sorted(value.fetch() for value in values)[:2] == [0, 0]
    assert Counted.packed == 2  # an iterator each
    assert 2 <= Counted.unpacked <= 2 * NUM_WORKERS  # a worker that came late may have had nothing to do
    held = Counted.alive
    assert held == Counted.unpacked
    del arguments, dataset, values
    deadline = time.monotonic() + 60
    while Counted.alive >= held and time.monotonic() < deadline:
        coordinator.schedule(lambda: 0)
        coordinator.join()
        gc.collect()
    assert Counted.alive < held


def test_functions_that_are_no_longer_kept_travel_again(coordinator, monkeypatch):
    monkeypatch.setattr("replicant.coordinator.scheduling._closures._MAX_FUNCTIONS", 2)
    functions = [lambda i=i: i for i in range(4)]
    for _ in range(3):
        values = [coordinator.schedule(function) for function in functions]
        coordinator.join()
        assert [value.fetch() for value in values] == [0, 1, 2, 3]


def test_an_optimizer_cannot_hold_a_per_worker_value(coordinator):
    values = coordinator.create_per_worker_resource(lambda: 1)
    with pytest.raises(UnserializableError, match="A PerWorkerValues cannot be part of an optimizer: only scheduled functions"):
        dumps([values], "An optimizer")
