"""Distributed iterators: their thread, its end, and what passes through it."""

import gc
import multiprocessing
import subprocess
import sys
import threading
import time
import traceback
import weakref

import numpy as np
import pytest

from replicant.data import Dataset, DistributedDataset, InputOptions, Optional
from replicant.errors import DatasetError, OutOfRangeError
from replicant.input.graph import _background
from replicant.input.graph._background import END, Background
from replicant.replicas._topology import Topology

SECONDS = 5.0


def distributed(dataset, replicas=2, place=lambda rows, sizes: (rows.tolist(), sizes), options=None):
    return DistributedDataset(dataset, Topology(replicas_per_worker=replicas), place, options)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("replicant")]


def wait_until(condition):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def test_what_place_receives():
    assert list(distributed(Dataset.range(7).batch(4))) == [([0, 1, 2, 3], (2, 2)), ([4, 5, 6], (2, 1))]
    assert list(distributed(Dataset.range(3).batch(2), 1)) == [([0, 1], (2,)), ([2], (1,))]
    assert list(distributed(Dataset.range(2), 1)) == [(0, ()), (1, ())]
    assert list(distributed(Dataset.from_tensor_slices(["a", "b", "c"]).batch(3))) == [(["a", "b", "c"], (2, 1))]
    kinds = list(distributed(Dataset.from_tensors((1, "a")), 1, lambda rows, sizes: (type(rows), rows.dtype, rows.shape)))
    assert kinds == [((np.ndarray, np.dtype("int32"), ()), (np.ndarray, np.dtype(object), ()))]


def test_a_worker_places_only_its_own_rows():
    dataset = Dataset.range(7).batch(7)
    parts = [
        list(DistributedDataset(dataset, Topology(2, worker, 2), lambda rows, sizes: (rows.tolist(), sizes))) for worker in (0, 1)
    ]
    assert parts == [[([0, 1, 2, 3], (2, 2))], [([4, 5, 6], (2, 1))]]


def test_several_iterators_are_independent():
    dataset = distributed(Dataset.range(6).batch(2), 1)
    first, second = iter(dataset), iter(dataset)
    assert [next(first)[0], next(second)[0], next(second)[0], next(first)[0]] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert [x[0] for x in first] == [x[0] for x in second] == [[4, 5]]


def test_at_least_two_batches_are_placed_ahead_and_not_many_more():
    placed = []
    with iter(distributed(Dataset.range(100).batch(1), 1, lambda rows, sizes: placed.append(rows.item()))) as iterator:
        assert placed == []  # an iterator that is not used does nothing
        next(iterator)
        wait_until(lambda: len(placed) == 4)  # one taken, two in the queue, one on its way into it
        time.sleep(0.02)
        assert placed == [0, 1, 2, 3]


def test_a_larger_buffer_is_filled():
    placed = []
    options = InputOptions(experimental_per_replica_buffer_size=5)
    dataset = distributed(Dataset.range(100).batch(1), 1, lambda rows, sizes: placed.append(rows.item()), options)
    with iter(dataset) as iterator:
        next(iterator)
        wait_until(lambda: len(placed) == 7)


def test_without_fetching_batches_stay_on_the_host_until_they_are_asked_for():
    placing = []
    options = InputOptions(experimental_fetch_to_device=False)
    dataset = distributed(Dataset.range(4).batch(1), 1, lambda rows, sizes: placing.append(threading.get_ident()), options)
    with iter(dataset) as iterator:
        next(iterator)
        time.sleep(0.02)
        assert placing == [threading.get_ident()]


def test_get_next_and_optionals_at_the_end():
    iterator = iter(distributed(Dataset.range(1).batch(1), 1))
    assert iterator.get_next() == ([0], (1,))
    with pytest.raises(OutOfRangeError, match=r"The iterator is at its end.*iter\(dataset\).*repeat"):
        iterator.get_next()
    empty = iterator.get_next_as_optional()
    assert not empty.has_value()
    with pytest.raises(OutOfRangeError, match=r"optional is empty.*has_value\(\)"):
        empty.get_value()
    assert Optional(None).has_value()
    assert next(iterator, "end") == "end"


def test_the_thread_ends_at_the_end():
    assert len(list(distributed(Dataset.range(3).batch(1), 1))) == 3
    wait_until(lambda: not threads())


def test_the_thread_ends_at_close_and_the_iterator_is_at_its_end():
    iterator = iter(distributed(Dataset.range(3).repeat().batch(1), 1))
    next(iterator)
    assert len(threads()) == 1
    iterator.close()
    assert not threads()
    assert next(iterator, "end") == "end"
    iterator.close()


@pytest.mark.long
def test_the_thread_ends_when_the_loop_is_left():
    for _ in distributed(Dataset.range(3).repeat().batch(1), 1):
        break
    gc.collect()
    wait_until(lambda: not threads())


@pytest.mark.long
def test_the_thread_ends_when_the_iterator_is_collected_also_inside_a_pipeline():
    iterator = iter(distributed(Dataset.range(3).repeat().batch(1).prefetch(2), 1))
    next(iterator)
    assert len(threads()) == 2
    del iterator
    gc.collect()
    wait_until(lambda: not threads())


@pytest.mark.long
def test_batches_that_were_handed_over_are_not_kept_alive():
    """The queue, the thread and the iterator hold what is ahead, nothing that was consumed."""

    class Placed:
        pass

    with iter(distributed(Dataset.range(9).batch(1), 1, lambda rows, sizes: Placed())) as iterator:
        first = weakref.ref(next(iterator))
        next(iterator)
        gc.collect()
        assert first() is None


def fails_at(number):
    def fn(x):
        if x == number:
            raise KeyError(f"element {x} is bad")
        return x

    return fn


def test_what_a_user_function_raises_is_raised_in_the_loop_after_the_batches_before_it():
    iterator = iter(distributed(Dataset.range(9).map(fails_at(5)).batch(2), 1))
    assert [next(iterator)[0], next(iterator)[0]] == [[0, 1], [2, 3]]
    with pytest.raises(KeyError, match="element 5 is bad") as info:
        next(iterator)
    assert traceback.extract_tb(info.value.__traceback__)[-1].name == "fn"
    with pytest.raises(KeyError, match="element 5 is bad"):  # and again: it is not the end of the data
        next(iterator)
    wait_until(lambda: not threads())


@pytest.mark.parametrize("leave", ["close", "error"])
def test_threads_inside_the_pipeline_end_with_the_iterator(leave):
    pipeline = Dataset.range(3).repeat().prefetch(2).batch(1).map(fails_at(2) if leave == "error" else np.copy)
    iterator = iter(distributed(pipeline.prefetch(2), 1))
    next(iterator)
    if leave == "close":
        assert len(threads()) == 3
        iterator.close()
    else:
        with pytest.raises(KeyError, match=r"element .2. is bad"):
            list(iterator)
    wait_until(lambda: not threads())


@pytest.mark.parametrize("transform", ["map", "filter"])
def test_a_stop_iteration_of_a_user_function_is_not_the_end_of_the_data(transform):
    def fn(x):
        return next(iter(()))

    with pytest.raises(RuntimeError, match=r"the function .*fn raised StopIteration"):
        list(getattr(Dataset.range(3), transform)(fn))


def test_what_place_raises_is_raised_in_the_loop():
    def place(rows, sizes):
        raise MemoryError("no room for 8 rows")

    with pytest.raises(MemoryError, match="no room for 8 rows"):
        next(iter(distributed(Dataset.range(8).batch(8), 2, place)))


def test_a_blocked_producer_does_not_hold_up_closing_for_ever():
    release = threading.Event()
    background = Background(lambda: release.wait(SECONDS), lambda: None, 1, "replicant-blocked")
    consumer = threading.Thread(target=background.next)
    consumer.start()
    wait_until(threads)
    background.close(seconds=0.05)
    consumer.join(SECONDS)
    assert not consumer.is_alive()
    release.set()
    wait_until(lambda: not threads())


def test_a_dead_thread_is_noticed(monkeypatch):
    monkeypatch.setattr(_background, "_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(_background, "_run", lambda produce, release, channel: None)  # dies without a word
    with pytest.raises(DatasetError, match="thread that reads the dataset is gone"):
        Background(lambda: END, lambda: None, 1, "replicant-dead").next()


def _next_in_child(iterator, connection):
    try:
        next(iterator)
    except DatasetError as error:
        connection.send(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_is_told_instead_of_waiting():
    """Only what fork copies is used here; no JAX call is made in the child."""
    with iter(distributed(Dataset.range(9).batch(1), 1)) as iterator:
        next(iterator)
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_next_in_child, args=(iterator, sender))
        child.start()
        try:
            assert receiver.poll(30), "the child hangs"
            assert "Make the iterator after the fork" in receiver.recv()
        finally:
            child.kill()
            child.join()
            receiver.close()
            sender.close()


@pytest.mark.long
def test_the_interpreter_exits_with_an_iterator_in_the_middle():
    program = """
import time
from replicant.replicas._topology import Topology
from replicant.data import Dataset, DistributedDataset
import jax

def place(rows, sizes):
    time.sleep(0.01)
    return jax.device_put(rows)

iterator = iter(DistributedDataset(Dataset.range(5).repeat().batch(2), Topology(), place))
print(next(iterator))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0 1]\n", "")


def test_iterators_of_plain_datasets_have_the_same_words():
    iterator = Dataset.range(2).as_numpy_iterator()
    assert iterator.get_next() == 0
    assert iterator.get_next_as_optional().get_value() == 1
    with pytest.raises(OutOfRangeError):
        iterator.get_next()
    with iter(Dataset.range(2)) as early:
        next(early)
    assert list(early) == []


def test_a_distributed_position_is_that_of_the_last_batch_handed_out():
    """Not that of the thread, which is ahead."""
    dataset = distributed(Dataset.range(12).shuffle(12, seed=1).batch(2))
    with iter(dataset) as iterator:
        next(iterator), next(iterator)
        state = iterator.state()
        rest = list(iterator)
    again = iter(dataset)
    again.restore(state)
    assert list(again) == rest
    assert len(rest) == 4


def test_a_position_fits_any_number_of_replicas():
    pipeline = Dataset.range(12).shuffle(12, seed=1).batch(4)
    with iter(distributed(pipeline, 2)) as two:
        next(two)
        state = two.state()
        rest = [rows for rows, _ in two]
    three = iter(distributed(pipeline, 3))
    three.restore(state)
    assert [(rows, sizes) for rows, sizes in three] == [(rows, (2, 2, 0)) for rows in rest]


def test_a_position_of_another_pipeline_is_refused():
    state = iter(Dataset.range(4).batch(2)).state()
    with pytest.raises(DatasetError, match=r"another pipeline.*'range\(0, 4, 1\) > batch\(2\)'.*'range\(0, 4, 1\) > batch\(3\)'"):
        iter(Dataset.range(4).batch(3)).restore(state)
    with pytest.raises(DatasetError, match="another pipeline"):
        iter(Dataset.range(4).batch(2)).restore({})
