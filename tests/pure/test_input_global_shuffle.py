"""Global shuffles: every number once, all orders about equally likely, exact positions, and the same order on all workers."""

import itertools
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import Dataset, DistributedDataset
from replicant.errors import DatasetError
from replicant.input.transforms.order import _permutation
from replicant.input.transforms.order._permutation import Permutation
from replicant.replicas._topology import Topology

BINS = 64
LARGE = [70_000, 131_072, 131_073, 1_000_003, 2**40 + 7]


def order(dataset):
    return [int(x) for x in dataset.as_numpy_iterator()]


def excess(counts):
    """The chi-square statistic of equally likely cells, in its standard deviations above its mean."""
    counts, expected = np.asarray(counts).ravel(), np.sum(counts) / np.size(counts)
    degrees = counts.size - 1
    return (np.sum((counts - expected) ** 2 / expected) - degrees) / np.sqrt(2 * degrees)


def table(rows, columns):
    counts = np.zeros((BINS, BINS))
    np.add.at(counts, (rows, columns), 1)
    return counts


def bins(numbers, size):
    return (numbers // (size / BINS)).astype(np.int64)


def statistics(size, seed):
    """How unevenly a quarter of the places is spread: places and numbers, neighbours, their differences, last bits, epochs."""
    places = np.arange(min(size // 4, 60_000))
    one, other = (Permutation(size, (seed, epoch, 0)).at(places) for epoch in (0, 1))
    first, second = bins(one, size), bins(other, size)
    return {
        "places": excess(table(places * BINS // len(places), first)),
        "neighbours": excess(table(first[:-1], first[1:])),
        "differences": excess(np.bincount(bins(np.diff(one) % size, size), minlength=BINS)),
        "last bits": excess(table(places % BINS, one % BINS)),
        "epochs": excess(table(first, second)),
    }


@pytest.mark.parametrize("size", LARGE)
def test_large_permutations_look_random(size):
    for seed in range(2):
        assert max(statistics(size, seed).values()) < 4.5


def test_the_statistics_find_poor_permutations(monkeypatch):
    monkeypatch.setattr(_permutation, "_ROUNDS", 2)
    assert min(max(statistics(size, 0).values()) for size in LARGE) > 10


def test_all_orders_of_few_elements_are_equally_likely():
    counts = dict.fromkeys(itertools.permutations(range(4)), 0)
    for seed in range(4800):
        counts[tuple(Permutation(4, (seed, 0, 0)).at(np.arange(4)).tolist())] += 1
    assert excess(list(counts.values())) < 4.5


@pytest.mark.parametrize("size", [1, 2, 3, 1 << 16, (1 << 16) + 1, 100_000, 131_072, 131_073])
def test_every_number_comes_once(size):
    for seed in range(2):
        assert np.array_equal(np.sort(Permutation(size, (seed,)).at(np.arange(size))), np.arange(size))


def test_the_order_is_the_same_on_every_machine_and_in_every_version():
    assert Permutation(10, (1, 0, 0)).at(np.arange(10)).tolist() == [9, 5, 1, 4, 7, 3, 6, 2, 8, 0]
    assert Permutation(2**40, (1, 0, 0)).at(np.arange(3)).tolist() == [1095954734574, 925346638840, 603112083370]


@given(st.integers(0, 5000), st.lists(st.integers(1, 3000), min_size=1, max_size=4))
@settings(max_examples=25)
def test_the_order_does_not_depend_on_how_many_are_asked_for(size, limits):
    dataset = Dataset.range(size).global_shuffle(seed=4, reshuffle_each_iteration=False)
    cursor, pieces = dataset.node.open(), []
    for limit in itertools.cycle(limits):
        block = cursor.pull(limit)
        if block is None:
            break
        assert 1 <= block.size <= limit
        pieces += block.stack().tolist()
    (whole,) = dataset.batch(size) if size else ([],)
    assert pieces == list(whole)


def test_epochs_have_orders_of_their_own_and_a_seed_fixes_them():
    first, second = (Dataset.range(50).global_shuffle(seed=7) for _ in range(2))
    orders = [order(first) for _ in range(3)]
    assert [order(second) for _ in range(3)] == orders
    assert len({tuple(each) for each in orders}) == 3
    passes = np.array(order(Dataset.range(50).global_shuffle(seed=7).repeat(3))).reshape(3, 50)
    assert np.sort(passes).tolist() == [list(range(50))] * 3
    assert len({tuple(each) for each in passes.tolist()}) == 3
    same = Dataset.range(50).global_shuffle(seed=7, reshuffle_each_iteration=False)
    assert order(same) == order(same) == orders[0]
    assert order(same.repeat(2)) == orders[0] * 2
    assert order(Dataset.range(50).global_shuffle()) != order(Dataset.range(50).global_shuffle())


@pytest.mark.parametrize("size", [0, 1, 2])
def test_few_elements(size):
    assert sorted(order(Dataset.range(size).global_shuffle().repeat(2))) == sorted([*range(size)] * 2)


def test_a_huge_dataset_costs_nothing():
    start = time.process_time()
    dataset = Dataset.range(2**62).global_shuffle(seed=3)
    iterator = iter(dataset.skip(2**61))
    next(iterator)
    position = json.loads(json.dumps(iterator.state()))
    assert position["position"]["source"]["next"] == 2**61 + 1
    again = iter(dataset.skip(2**61))
    again.restore(position)
    assert next(again) == next(iterator)
    assert time.process_time() - start < 1


SOURCES = {
    "arrays": lambda: Dataset.from_tensor_slices((np.arange(12) * 10, np.arange(12) + 100)).map(lambda x, y: x + y),
    "take, skip and shard": lambda: Dataset.range(40).skip(3).take(30).shard(4, 1),
    "enumerate": lambda: Dataset.range(5, 14).enumerate().map(lambda i, x: 100 * i + x),
    "zip": lambda: Dataset.zip(Dataset.range(9), Dataset.range(20, 40)).map(lambda x, y: 100 * x + y),
    "concatenate": lambda: Dataset.range(5).concatenate(Dataset.range(50, 58)).concatenate(Dataset.range(90, 93)),
    "a map in between": lambda: Dataset.range(20).map(lambda x: x * x).skip(4),
    "threads": lambda: Dataset.range(20).map(lambda x: x * x, num_parallel_calls=2).map(lambda x: x + 1, num_parallel_calls=2),
    "a window": lambda: next(iter(Dataset.range(9).window(9))),
}


@pytest.mark.parametrize("name", SOURCES)
def test_what_can_be_read_by_number(name):
    whole = order(SOURCES[name]())
    shuffled = SOURCES[name]().global_shuffle(seed=1)
    found = order(shuffled)
    assert found != whole
    assert sorted(found) == sorted(whole)
    assert len(shuffled) == len(whole)


def test_a_map_before_it_keeps_its_threads():
    node = SOURCES["threads"]().global_shuffle(seed=1).node
    assert (node.num_threads, node.input.num_threads) == (2, 2)


def test_an_element_that_cannot_be_made_is_left_out_alone():
    def odd(x):
        if x % 5 == 0:
            raise ValueError("five")
        return x

    dataset = Dataset.range(20).map(odd).take(18).global_shuffle(seed=1).ignore_errors()
    assert sorted(order(dataset)) == [x for x in range(18) if x % 5]


def test_an_array_on_a_disk(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(300).reshape(100, 3))
    rows = np.load(tmp_path / "rows.npy", mmap_mode="r")
    batches = list(Dataset.from_tensor_slices(rows).global_shuffle(seed=1).batch(7))
    assert sorted(int(x) for batch in batches for x in batch[:, 0]) == list(range(0, 300, 3))


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_workers_sees_the_same_batches(num_workers):
    whole = [batch.tolist() for batch in Dataset.range(100).global_shuffle(seed=1).repeat(2).batch(9)]
    shares = []
    for worker in range(num_workers):
        dataset = Dataset.range(100).global_shuffle(seed=1).repeat(2).batch(9)
        topology = Topology(num_workers, worker, 1)
        shares.append([part.tolist() for part in DistributedDataset(dataset, topology, lambda rows, sizes: rows)])
    assert [sum(parts, []) for parts in zip(*shares, strict=True)] == whole


def test_workers_that_cannot_agree_on_an_order_are_refused():
    with pytest.raises(DatasetError, match=r"`global_shuffle` has no seed.*Give it one: `global_shuffle\(seed=1\)`"):
        DistributedDataset(Dataset.range(9).global_shuffle().batch(3), Topology(2, 0, 1), lambda rows, sizes: rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Dataset.range(9).batch(2),
            r"`batch\(2\)` can only give them in order\. Call `global_shuffle` before it, or use `sh",
        ),
        (lambda: Dataset.range(9).filter(bool).enumerate(), r"`filter\(bool\)` can only give them in order\. Call"),
        (lambda: Dataset.range(9).repeat(), r"`repeat\(\)` can only give"),
        (lambda: Dataset.range(9).map(str, num_parallel_calls=2).take(3), r"`map\(str\)` can only give"),
        (lambda: Dataset.zip(Dataset.range(9), Dataset.counter()), r"`counter\(0, 1, int64\)` can only give.*Or read from someth"),
        (
            lambda: Dataset.from_generator(lambda: iter(range(3))).map(str),
            r"`from_generator\(.*Use `shuffle\(buffer_size\)`\. Or rea",
        ),
    ],
)
def test_what_can_only_be_read_in_order_is_refused(make, message):
    with pytest.raises(DatasetError, match=message):
        make().global_shuffle()
