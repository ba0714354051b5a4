"""Windowed shuffle: what may come where, and which orders are the same."""

import itertools
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicant.data import Dataset
from replicant.input.transforms.order._shuffle import Swap


def order(dataset):
    return [int(x) for x in dataset]


@given(st.integers(0, 60), st.integers(1, 70), st.integers(0, 99))
def test_everything_comes_once_and_nothing_before_it_was_in_the_buffer(size, buffer_size, seed):
    result = order(Dataset.range(size).shuffle(buffer_size, seed=seed))
    assert sorted(result) == list(range(size))
    assert all(number < place + buffer_size for place, number in enumerate(result))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_many_draws_at_once_equal_one_after_the_other(drawn):
    held, incoming = np.arange(5), np.arange(100, 100 + len(drawn))
    slots, expected = held.tolist(), []
    for slot, new in zip(drawn, incoming.tolist(), strict=True):
        expected.append(slots[slot])
        slots[slot] = new
    assert Swap(np.array(drawn, dtype=np.int64)).apply(held, incoming).tolist() == expected
    assert held.tolist() == slots


@given(st.integers(0, 40), st.integers(1, 10), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_the_order_does_not_depend_on_how_many_are_asked_for(size, buffer_size, limits):
    node = Dataset.range(size).shuffle(buffer_size, seed=4, reshuffle_each_iteration=False).node
    cursor, pieces = node.open(), []
    for limit in itertools.cycle(limits):
        block = cursor.pull(limit)
        if block is None:
            break
        assert block.size <= limit
        pieces += [int(x) for x in block.elements()]
    assert pieces == order(Dataset(node))


def test_every_iteration_has_another_order_and_the_sequence_is_reproducible():
    first, second = (Dataset.range(50).shuffle(50, seed=7) for _ in range(2))
    orders = [order(first) for _ in range(3)]
    assert [order(second) for _ in range(3)] == orders
    assert len({tuple(o) for o in orders}) == 3


def test_every_pass_of_a_repeat_has_another_order():
    result = order(Dataset.range(50).shuffle(50, seed=7).repeat(3))
    passes = [tuple(result[i : i + 50]) for i in (0, 50, 100)]
    assert [sorted(p) for p in passes] == [list(range(50))] * 3
    assert len(set(passes)) == 3


def test_without_reshuffling_all_orders_are_the_same():
    dataset = Dataset.range(50).shuffle(50, seed=7, reshuffle_each_iteration=False)
    assert order(dataset) == order(dataset)
    assert order(dataset.repeat(2)) == order(dataset) * 2
    unseeded = Dataset.range(50).shuffle(50, reshuffle_each_iteration=False)
    assert order(unseeded) == order(unseeded)


def test_another_seed_gives_another_order():
    assert order(Dataset.range(50).shuffle(50, seed=1)) != order(Dataset.range(50).shuffle(50, seed=2))
    assert order(Dataset.range(50).shuffle(50)) != order(Dataset.range(50).shuffle(50))


def test_a_seed_of_pythons_random_fixes_an_unseeded_shuffle():
    orders = []
    for _ in range(2):
        random.seed(5)
        orders.append(order(Dataset.range(50).shuffle(50)))
    assert orders[0] == orders[1]


def test_a_shuffle_that_holds_everything_is_uniform():
    counts = np.zeros((4, 4))
    dataset = Dataset.range(4).shuffle(4, seed=0)
    for _ in range(2000):
        counts[np.arange(4), order(dataset)] += 1
    assert np.abs(counts / 2000 - 0.25).max() < 0.05


def test_the_drawn_slot_is_uniform_in_a_window():
    """The first element to leave is any of those in the buffer."""
    dataset = Dataset.range(20).shuffle(5, seed=0)
    firsts = np.bincount([int(next(iter(dataset))) for _ in range(2000)], minlength=5)
    assert len(firsts) == 5
    assert np.abs(firsts / 2000 - 0.2).max() < 0.05


def test_tables_of_two_sources_may_mix_in_one_buffer():
    dataset = Dataset.from_tensor_slices([1, 2, 3]).concatenate(Dataset.from_tensor_slices([4, 5, 6]))
    for buffer_size in (2, 4, 6):
        (batch,) = dataset.shuffle(buffer_size, seed=1).batch(6)
        assert sorted(batch.tolist()) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("buffer_size", [1_000, 60_000])
def test_shuffle_and_batch_move_numbers_not_rows(buffer_size):
    """At least 2 million small images per second on one core; a tenth of that is asked for, as machines are shared."""
    images, labels = np.zeros((60_000, 28, 28), np.uint8), np.zeros(60_000, np.int64)
    dataset = Dataset.from_tensor_slices((images, labels)).shuffle(buffer_size).batch(256)
    start = time.perf_counter()
    assert sum(len(y) for _, y in dataset) == 60_000
    assert 60_000 / (time.perf_counter() - start) > 200_000
