"""map on threads: order, bounds, errors, positions, and the end of the threads."""

import gc
import itertools
import json
import multiprocessing
import random
import threading
import time
import traceback

import pytest

from replicant.data import AUTOTUNE, Dataset
from replicant.errors import ArgumentError, DatasetError, ElementError

SECONDS = 5.0


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("replicant")]


def wait_until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def late(x):
    time.sleep(random.random() / 500)
    return x * 10


def values(dataset):
    return [element.tolist() for element in dataset]


@pytest.mark.parametrize("calls", [1, 2, 5, AUTOTUNE])
@pytest.mark.parametrize("deterministic", [None, True, False])
def test_elements_come_in_order(calls, deterministic):
    dataset = Dataset.range(40).map(late, calls, deterministic)
    assert values(dataset) == list(range(0, 400, 10))
    assert values(dataset.batch(15)) == [list(range(0, 150, 10)), list(range(150, 300, 10)), list(range(300, 400, 10))]


def test_calls_run_side_by_side():
    together = threading.Barrier(3, timeout=SECONDS)
    assert values(Dataset.range(6).map(lambda x: x + 0 * together.wait(), num_parallel_calls=3)) == [0, 1, 2, 3, 4, 5]


def test_the_look_ahead_is_bounded():
    begun = []
    with iter(Dataset.range(1000).map(lambda x: begun.append(x) or x, num_parallel_calls=2)) as iterator:
        assert begun == []
        next(iterator)
        time.sleep(0.02)
        assert len(begun) <= 5


def fails_at(number):
    def fn(x):
        if x == number:
            raise KeyError(f"element {x} is bad")
        return x

    return fn


@pytest.mark.parametrize("number", [0, 3, 7])
def test_an_error_comes_in_its_place_with_the_traceback_of_the_function(number):
    iterator = iter(Dataset.range(9).map(fails_at(number), num_parallel_calls=3))
    assert [next(iterator).item() for _ in range(number)] == list(range(number))
    with pytest.raises(KeyError, match=f"element {number} is bad") as info:
        next(iterator)
    assert traceback.extract_tb(info.value.__traceback__)[-1].name == "fn"
    with pytest.raises(KeyError, match=f"element {number} is bad"):
        next(iterator)  # as without threads
    iterator.close()


def test_an_error_of_the_source_comes_after_the_elements_before_it():
    iterator = iter(Dataset.range(9).map(fails_at(4)).map(late, num_parallel_calls=2))
    assert values(itertools.islice(iterator, 4)) == [0, 10, 20, 30]
    with pytest.raises(KeyError, match="element 4 is bad"):
        next(iterator)


def quick(x):
    return x * 10


def outcomes(dataset):
    """What comes one by one, errors by their text, as `ignore_errors` sees it."""
    cursor, found = dataset.node.open(), []
    while True:
        try:
            one = cursor.pull_one()
        except KeyError as error:
            found.append(str(error))
        else:
            if one is None:
                return found
            found.append(one[0].item())


def test_errors_of_quick_calls_come_in_their_places():
    bad = {0, 3, 4, 299, 300, 301, 511, 598, 599}

    def fn(x):
        if x.item() in bad:
            raise KeyError(x.item())
        return x

    expected = [str(i) if i in bad else i for i in range(600)]
    assert outcomes(Dataset.range(600).map(fn)) == expected
    assert outcomes(Dataset.range(600).map(fn, num_parallel_calls=3)) == expected


def test_quick_calls_are_made_several_at_once_and_slow_ones_one_by_one():
    def fn(x):
        if 1000 <= x < 1300:
            time.sleep(0.003)
        return x

    with iter(Dataset.range(5000).map(fn, num_parallel_calls=2)) as iterator:
        sizes = []
        for i in range(5000):
            assert next(iterator) == i
            sizes.append(iterator._pass.cursor.run_size)
    assert max(sizes[:1000]) >= 8
    assert sizes[1299] == 1
    assert max(sizes[1300:]) >= 8


def test_the_look_ahead_of_quick_calls_is_bounded():
    begun = []
    with iter(Dataset.range(10_000).map(lambda x: begun.append(x) or x, num_parallel_calls=2)) as iterator:
        for given in range(1, 5001):
            next(iterator)
            assert len(begun) - given < 2 * 2 * 64


def test_a_close_is_not_kept_waiting_by_calls_that_nobody_needs():
    begun = []

    def fn(x):
        begun.append(x)
        if x >= 2000:
            time.sleep(0.05)
        return x

    iterator = iter(Dataset.range(10_000).map(fn, num_parallel_calls=2))
    for _ in range(1900):
        next(iterator)
    while len(begun) <= 2000:
        next(iterator)
    iterator.close()
    left = len(begun)
    wait_until(lambda: not threads())
    assert len(begun) <= left + 2


@pytest.mark.parametrize("cut", [0, 1, 37, 500, 501, 777, 1499])
def test_an_iterator_of_quick_calls_continues_from_every_point(cut):
    def made(calls):
        return Dataset.range(500).shuffle(50, seed=3).repeat(3).map(quick, calls)

    whole = values(made(None))
    with iter(made(2)) as iterator:
        assert values(itertools.islice(iterator, cut)) == whole[:cut]
        state = json.loads(json.dumps(iterator.state()))
        assert values(iterator) == whole[cut:]
    with iter(made(3)) as again:
        again.restore(state)
        assert values(again) == whole[cut:]


@pytest.mark.parametrize(("number", "index"), [(2, 1), (7, 3), (100, 99), (700, 0)])
def test_quick_calls_are_passed_over(number, index):
    dataset = Dataset.range(2000).map(quick, num_parallel_calls=2).shard(number, index)
    assert values(dataset) == list(range(index * 10, 20_000, number * 10))


def test_structures_are_compared():
    with pytest.raises(ElementError, match=r"must return the same structure for all elements. It returned \*, then \(\*, \*\)"):
        list(Dataset.range(2).map(lambda n: (n, n) if n else n, num_parallel_calls=2).batch(2))


CUTS = {
    "plain": lambda calls: Dataset.range(20).map(late, calls),
    "shuffled, in batches, repeated": lambda calls: Dataset.range(7).shuffle(4, seed=1).map(late, calls).repeat(3).batch(3),
    "filtered": lambda calls: Dataset.range(20).filter(lambda x: x % 3 > 0).map(late, calls).map(late, calls).prefetch(2),
}


@pytest.mark.parametrize("name", CUTS)
def test_an_iterator_continues_from_every_point_with_any_number_of_threads(name):
    whole = values(CUTS[name](None))
    for cut in range(len(whole) + 1):
        with iter(CUTS[name](3)) as iterator:
            assert values(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
        for calls in (2, None):
            with iter(CUTS[name](calls)) as again:
                again.restore(state)
                assert values(again) == whole[cut:], cut


@pytest.mark.parametrize("leave", ["end", "close", "drop"])
@pytest.mark.long_cases("drop")
def test_threads_end_with_the_iterator(leave):
    iterator = iter(Dataset.range(30).map(late, num_parallel_calls=3))
    next(iterator)
    assert threads()
    if leave == "end":
        assert len(list(iterator)) == 29
    elif leave == "close":
        iterator.close()
        assert next(iterator, "end") == "end"
    else:
        del iterator
        gc.collect()
    wait_until(lambda: not threads())


def test_elements_that_are_skipped_are_not_called():
    called = []
    dataset = Dataset.range(10).map(lambda x: called.append(int(x)) or x, num_parallel_calls=2).shard(5, 4)
    assert values(dataset.take(1)) == [4]
    assert 0 not in called


def test_the_spec_is_learnt_without_threads():
    assert str(Dataset.range(3).map(late, num_parallel_calls=2).element_spec) == "TensorSpec(shape=(), dtype=int64)"
    assert not threads()


def _next_in_child(iterator, connection):
    try:
        next(iterator)
    except DatasetError as error:
        connection.send(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_is_told_instead_of_waiting():
    with iter(Dataset.range(9).map(late, num_parallel_calls=2)) as iterator:
        next(iterator)
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_next_in_child, args=(iterator, sender))
        child.start()
        try:
            assert receiver.poll(30), "the child hangs"
            assert "runs `map` on threads of another process" in receiver.recv()
        finally:
            child.kill()
            child.join()
            receiver.close()
            sender.close()


@pytest.mark.parametrize(("calls", "message"), [(0, "None, AUTOTUNE .* Received: 0"), (-2, "at least -1. Received: -2")])
def test_refused(calls, message):
    with pytest.raises(ArgumentError, match=f"map: num_parallel_calls must be {message}"):
        Dataset.range(3).map(late, num_parallel_calls=calls)
