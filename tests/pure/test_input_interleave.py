"""interleave and flat_map: order, laziness, threads, positions."""

import itertools
import json
import random
import threading
import time

import pytest

from replicant.data import AUTOTUNE, Dataset, TensorSpec
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError

SECONDS = 5.0


def counting(number, size):
    """Elements 10 * number, 10 * number + 1, ..."""
    return Dataset.range(10 * number, 10 * number + size)


def of_sizes(*sizes):
    return Dataset.from_tensor_slices(list(sizes)).enumerate()


def values(dataset):
    return [element.tolist() for element in dataset]


# Recorded with TensorFlow's tf.data.Dataset.interleave; sizes, cycle_length, block_length, elements.
ORDERS = [
    ((3, 3), 2, 1, [0, 10, 1, 11, 2, 12]),
    ((3, 3), 1, 1, [0, 1, 2, 10, 11, 12]),
    ((3, 1, 2), 2, 1, [0, 10, 1, 2, 20, 21]),
    ((1, 3, 2, 1), 2, 1, [0, 10, 11, 20, 12, 21, 30]),
    ((5, 1, 0, 4), 3, 2, [0, 1, 10, 2, 3, 30, 31, 4, 32, 33]),
    ((0, 0, 2), 2, 1, [20, 21]),
    ((2, 2), 5, 3, [0, 1, 10, 11]),
    ((), 3, 1, []),
]


@pytest.mark.parametrize("calls", [None, 2, AUTOTUNE])
@pytest.mark.parametrize("pulled", [1, 2, 5, 100])
@pytest.mark.parametrize("order", ORDERS)
def test_the_order_does_not_depend_on_threads_or_on_how_much_is_pulled(order, pulled, calls):
    sizes, cycle, block, expected = order
    dataset = of_sizes(*sizes).interleave(counting, cycle, block, num_parallel_calls=calls, deterministic=False)
    assert sum(values(dataset.batch(pulled)), []) == expected


def test_flat_map_is_one_dataset_after_the_other():
    assert values(of_sizes(2, 0, 3).flat_map(counting).repeat(2)) == [0, 1, 20, 21, 22] * 2
    assert values(of_sizes(6, 3).flat_map(lambda i, n: counting(i, n).batch(4)).take(3)) == [[0, 1, 2, 3], [4, 5], [10, 11, 12]]


def test_defaults_are_a_cycle_of_four_and_single_elements():
    assert values(of_sizes(2, 2, 2, 2, 2).interleave(counting)) == [0, 10, 20, 30, 1, 11, 21, 31, 40, 41]
    assert repr(of_sizes(1).interleave(counting, AUTOTUNE)).endswith("interleave(counting, cycle_length=4, block_length=1)>")
    assert repr(of_sizes(1).flat_map(counting)).endswith("flat_map(counting)>")


def test_datasets_are_made_when_their_turn_comes():
    made = []

    def child(number):
        made.append(int(number))
        return counting(number, 3)

    iterator = iter(Dataset.range(9).interleave(child, cycle_length=3))
    assert made == []
    next(iterator)
    assert made == [0]
    list(itertools.islice(iterator, 3))
    assert made == [0, 1, 2]


def test_facts():
    dataset = of_sizes(2, 3).interleave(lambda i, n: counting(i, n).batch(2))
    assert dataset.element_spec == TensorSpec((None,), "int64")
    assert dataset.cardinality() == Dataset.range(3).repeat().flat_map(Dataset.range).cardinality() == Dataset.UNKNOWN
    assert Dataset.range(0).flat_map(Dataset.range).element_spec is None


CUTS = {
    "one by one": lambda: of_sizes(3, 0, 5, 2, 4).interleave(counting, 2, 2),
    "batches": lambda: of_sizes(3, 0, 5, 2, 4).interleave(counting, 3, 2).batch(3),
    "threads": lambda: of_sizes(3, 0, 5, 2, 4).interleave(counting, 3, 1, num_parallel_calls=2).repeat(2),
    "shuffled input": lambda: of_sizes(3, 1, 5, 2, 4).shuffle(5, seed=1).interleave(counting, 2).repeat(2).batch(2),
    "shuffled datasets": lambda: of_sizes(3, 5).flat_map(lambda i, n: counting(i, n).shuffle(5, seed=2).repeat(2)).repeat(2),
    "nested": lambda: of_sizes(2, 3).interleave(lambda i, n: counting(i, n).flat_map(lambda k: counting(k, 2)), 2),
}


@pytest.mark.parametrize("name", CUTS)
def test_an_iterator_continues_from_every_point(name):
    with iter(CUTS[name]()) as iterator:
        whole = values(iterator)
    assert len(whole) >= 5
    for cut in range(len(whole) + 1):
        with iter(CUTS[name]()) as iterator:
            assert values(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
        with iter(CUTS[name]()) as again:
            again.restore(state)
            assert json.loads(json.dumps(again.state())) == state
            assert values(again) == whole[cut:], cut


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("replicant")]


@pytest.mark.parametrize("leave", ["close", "end", "fail"])
def test_threads_end_with_the_iterator(leave):
    def child(number):
        return Dataset.range(30).map(lambda x: [0][int(leave == "fail" and x == 20)] + x)

    iterator = iter(Dataset.range(3).interleave(child, 3, num_parallel_calls=3).prefetch(2))
    next(iterator)
    if leave == "close":
        iterator.close()
    elif leave == "end":
        assert len(list(iterator)) == 89
    else:
        with pytest.raises(IndexError, match="list index out of range"):
            list(iterator)
        iterator.close()
    deadline = time.monotonic() + SECONDS
    while threads():
        assert time.monotonic() < deadline, "threads are left"
        time.sleep(0.001)


def test_what_a_function_raises_is_raised_in_the_loop():
    def child(number):
        raise KeyError(f"file {number} is missing")

    with pytest.raises(KeyError, match="file 0 is missing"):
        next(iter(Dataset.range(3).interleave(child)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: Dataset.range(3).interleave(counting, 0),
            ArgumentError,
            r"cycle_length must be at least 1, or AUTOTUNE \(-1\).*: 0",
        ),
        (lambda: Dataset.range(3).interleave(counting, -2), ArgumentError, "interleave: cycle_length must be at least -1"),
        (lambda: Dataset.range(3).interleave(counting, 2, 0), ArgumentError, "interleave: block_length must be at least 1"),
        (lambda: Dataset.range(3).interleave(counting, 2, 1, 0), ArgumentError, "num_parallel_calls must be None, AUTOTUNE"),
        (lambda: Dataset.range(3).interleave(3), ArgumentTypeError, "interleave takes a function"),
        (lambda: Dataset.range(3).flat_map(None), ArgumentTypeError, "flat_map takes a function of one element. Received: None"),
        (
            lambda: list(Dataset.range(3).interleave(abs)),
            ArgumentTypeError,
            "interleave: abs must return a Dataset. It returned np.int64",
        ),
        (lambda: list(Dataset.range(3).flat_map(abs)), ArgumentTypeError, "flat_map: abs must return a Dataset.*Use `map`"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


INNER = Dataset.range(3).shuffle(3)

ORDERS_INSIDE = {
    "new": lambda: Dataset.range(6).interleave(lambda n: Dataset.range(3 * n, 3 * n + 3).shuffle(3), 2),
    "captured": lambda: Dataset.range(6).interleave(lambda n: INNER.map(lambda x: 3 * n + x), 2),
    "flat": lambda: Dataset.range(6).flat_map(lambda n: Dataset.range(3 * n, 3 * n + 3).shuffle(3)),
    "nested": lambda: Dataset.range(3).flat_map(
        lambda n: Dataset.range(2).interleave(lambda m: INNER.map(lambda x: 6 * n + 3 * m + x), 2)
    ),
    "cached": lambda: Dataset.range(6).flat_map(lambda n: INNER.cache().map(lambda x: 3 * n + x)),
    "on threads": lambda: Dataset.range(6).interleave(
        lambda n: Dataset.range(3 * n, 3 * n + 3).shuffle(3), 2, num_parallel_calls=2
    ),
}


@pytest.mark.parametrize("name", ORDERS_INSIDE)
def test_orders_inside_of_functions_go_on_where_they_were(name):
    """A shuffle behind them reads again what it holds: in the order in which it was, though nothing has a seed."""

    def make():
        return ORDERS_INSIDE[name]().shuffle(7).repeat(2).batch(4)

    for cut in range(10):
        with iter(make()) as iterator:
            begun = list(itertools.islice(iterator, cut))
            state = json.loads(json.dumps(iterator.state()))
            rest = [batch.tolist() for batch in iterator]
        again = iter(make())
        again.restore(state)
        assert [batch.tolist() for batch in again] == rest
        assert sorted(x for batch in [*begun, *rest] for x in batch) == sorted([*range(18)] * 2)


def test_every_iteration_and_pass_has_other_orders_inside_of_functions():
    inner = Dataset.range(20).shuffle(20, seed=1)
    dataset = Dataset.range(2).flat_map(lambda n: inner).batch(20).repeat(2)
    alone = Dataset.range(20).shuffle(20, seed=1)
    orders = [tuple(order.tolist()) for _ in range(2) for order in dataset]
    assert len(set(orders)) == 8
    assert orders[:2] == [tuple(map(int, alone)) for _ in range(2)]  # as the inner dataset's own first iterations
    new = Dataset.range(2).flat_map(lambda n: Dataset.range(20).shuffle(20, seed=1)).batch(20)
    assert {tuple(order.tolist()) for _ in range(2) for order in new} == {orders[0]}
    fixed = Dataset.range(20).shuffle(20, seed=1, reshuffle_each_iteration=False)
    assert {tuple(order.tolist()) for order in Dataset.range(3).flat_map(lambda n: fixed).batch(20)} == {orders[0]}


def test_a_cache_inside_of_a_function_is_filled_once():
    calls = []
    inner = Dataset.range(4).map(lambda x: calls.append(int(x)) or x).shuffle(4).cache()
    dataset = Dataset.range(3).flat_map(lambda n: inner).batch(4)
    first, *others = [order.tolist() for _ in range(2) for order in dataset]
    assert others == [first] * 5
    assert sorted(calls) == [0, 1, 2, 3]


def test_a_position_without_the_orders_inside_of_functions_is_refused():
    iterator = iter(ORDERS_INSIDE["new"]())
    state = iterator.state()
    assert state["position"].pop("orders")[1:] == [0, 0, 0]
    iterator.restore(state)
    with pytest.raises(DatasetError, match=r"does not contain the order of shuffle\(3\) inside a function of `interleave`.*older"):
        next(iterator)
    plain = iter(Dataset.range(3).flat_map(Dataset.range))  # where nothing depends on it
    old = plain.state()
    del old["position"]["orders"]
    plain.restore(old)
    assert list(map(int, plain)) == [0, 0, 1]


def test_pythons_seed_fixes_the_orders_inside_of_functions():
    def order(seed):
        random.seed(seed)
        dataset = ORDERS_INSIDE["captured"]()
        state = random.getstate()
        read = list(map(int, dataset))
        assert random.getstate() == state  # nothing is drawn that is the user's
        return read

    assert order(1) == order(1) != order(2)
