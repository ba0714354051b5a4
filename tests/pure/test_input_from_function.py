"""Input functions, steps without rows, the common end of several workers, and what an iterator measures."""

import itertools
import json
import math
import re
import time
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicant.data import AutoShardPolicy, Dataset, DistributedDataset, InputContext, InputOptions, InputReplicationMode, Options
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from replicant.input.distributed._agreement import agreed_steps
from replicant.input.distributed._stats import InputStats
from replicant.input.distributed._steps import CountedSteps
from replicant.input.graph._background import END
from replicant.input.graph._structure import PerReplicaSpec, TensorSpec
from replicant.replicas._topology import Topology

PER_REPLICA = InputOptions(experimental_replication_mode=InputReplicationMode.PER_REPLICA)


class Named(NamedTuple):
    a: Any
    b: Any


def from_function(dataset_fn, topology, **kwargs):
    return DistributedDataset.from_function(dataset_fn, topology, kwargs.pop("place", each), **kwargs)


def each(values):
    return [np.asarray(value).tolist() for value in values]


def forms(values):
    return [(value.dtype.name, value.shape) for value in map(np.asarray, values)]


def cut(rows, sizes):
    ends = np.cumsum(sizes)
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


# InputContext and InputOptions


def test_the_share_of_one_replica():
    context = InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4)
    assert [context.get_per_replica_batch_size(size) for size in (0, 4, 64)] == [0, 1, 16]
    with pytest.raises(
        ArgumentError, match=r"The `global_batch_size` 5 is not divisible by `num_replicas_in_sync` 4\. Use 4 or 8, or give"
    ):
        context.get_per_replica_batch_size(5)
    assert InputContext() == InputContext(1, 0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experimental_place_dataset_on_device": True}, "must be False: datasets are read by the host"),
        (
            {"experimental_fetch_to_device": True, "experimental_prefetch_to_device": False},
            "an older name of experimental_fetch_to_device, so they cannot differ. Received: False and True",
        ),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ArgumentError, match=message):
        InputOptions(**options)


def test_both_names_of_fetching():
    assert [InputOptions(experimental_prefetch_to_device=value).fetch for value in (None, True, False)] == [True, True, False]
    assert [InputOptions(experimental_fetch_to_device=value).fetch for value in (None, True, False)] == [True, True, False]


# Elements for replicas


@pytest.mark.parametrize(
    ("make", "num_replicas", "expected"),  # one row per step, one entry per replica
    [
        (lambda: Dataset.range(4).batch(2), 1, [[[0, 1]], [[2, 3]]]),
        (lambda: Dataset.range(3), 1, [[0], [1], [2]]),
        (lambda: Dataset.range(8).batch(2), 2, [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        (lambda: Dataset.range(5).batch(2), 2, [[[0, 1], [2, 3]], [[4], []]]),
        (lambda: Dataset.range(5).batch(2), 4, [[[0, 1], [2, 3], [4], []]]),
        (lambda: Dataset.range(5), 2, [[0, 1], [2, 3], [4, []]]),
        (lambda: Dataset.range(0).batch(2), 2, []),
        (lambda: Dataset.from_tensor_slices(["a", "b", "c"]), 2, [["a", "b"], ["c", []]]),
        (lambda: Dataset.from_tensor_slices(["a", "b", "c"]).batch(2), 2, [[["a", "b"], ["c"]]]),
    ],
)
def test_each_replica_gets_the_next_element(make, num_replicas, expected):
    assert list(from_function(lambda context: make(), Topology(replicas_per_worker=num_replicas))) == expected


STRUCTURES = {
    "tuple": lambda x: (x, np.float32(x)),
    "dict": lambda x: {"a": x, "b": np.full((2, 3), x, np.uint8)},
    "named tuple": lambda x: Named(x, (x, np.float16(x))),
    "nested": lambda x: {"a": (x, [np.bool_(x)]), "b": {"c": np.complex64(x)}},
    "strings": lambda x: (x, str(x)),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_shares_without_rows_have_the_form_of_the_others(name):
    dataset = Dataset.range(3).map(STRUCTURES[name]).batch(2)
    (step,) = from_function(lambda context: dataset, Topology(replicas_per_worker=3), place=forms)
    whole, _, nothing = zip(*_leaves(step), strict=True)
    assert [(dtype, shape[1:]) for dtype, shape in whole] == [(dtype, shape[1:]) for dtype, shape in nothing]
    assert {shape[0] for _, shape in nothing} == {0}


def _leaves(tree):
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _leaves(value)]
    return [leaf for value in tree for leaf in _leaves(value)] if isinstance(tree, tuple) else [tree]


def test_one_function_call_per_worker_or_per_replica():
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return Dataset.range(10 * context.input_pipeline_id, 10 * context.input_pipeline_id + 3 - context.input_pipeline_id)

    topology = Topology(num_workers=2, worker_index=1, replicas_per_worker=2)
    exchange = lambda number: [number]  # noqa: E731
    assert list(from_function(dataset_fn, topology, exchange=exchange)) == [[10, 11]]
    assert contexts == [InputContext(2, 1, 4)]
    contexts.clear()
    single = Topology(replicas_per_worker=3)
    assert list(from_function(dataset_fn, single, options=PER_REPLICA)) == [[0, 10, 20], [1, 11, []], [2, [], []]]
    assert contexts == [InputContext(3, i, 3) for i in range(3)]
    contexts.clear()
    list(from_function(dataset_fn, topology, options=PER_REPLICA, exchange=exchange))
    assert contexts == [InputContext(4, 2, 4), InputContext(4, 3, 4)]


def test_a_replica_at_its_end_does_not_get_what_is_anothers():
    def dataset_fn(context):
        return Dataset.range(1 + 2 * context.input_pipeline_id)

    dataset = from_function(dataset_fn, Topology(replicas_per_worker=2), options=PER_REPLICA)
    assert list(dataset) == [[0, 0], [[], 1], [[], 2]]
    assert dataset.cardinality() == 3


def test_specs_and_cardinalities():
    dataset = from_function(lambda context: Dataset.range(7).batch(2), Topology(replicas_per_worker=3))
    assert dataset.element_spec == iter(dataset).element_spec == PerReplicaSpec(TensorSpec((None,), np.int64), 3)
    assert dataset.cardinality() == 2
    assert from_function(lambda context: Dataset.range(7), Topology()).element_spec == TensorSpec((), np.int64)
    assert from_function(lambda context: Dataset.range(7).repeat(), Topology()).cardinality() == -1
    assert from_function(lambda context: Dataset.range(7).filter(bool), Topology()).cardinality() == -2
    with pytest.raises(DatasetError, match=r"An input function made this dataset.*`explain\(\)` is for datasets"):
        dataset.explain()


@pytest.mark.parametrize(
    ("dataset_fn", "error", "message"),
    [
        (Dataset.range(4), ArgumentTypeError, r"takes a function.*Received: <Dataset.*use `experimental_distribute_dataset`"),
        (lambda context: 3, ArgumentTypeError, "Received: int"),
        (lambda context: None, ArgumentTypeError, "Received: NoneType"),
    ],
)
def test_functions_that_make_no_dataset(dataset_fn, error, message):
    with pytest.raises(error, match=message):
        from_function(dataset_fn, Topology(replicas_per_worker=2))


def test_elements_of_one_step_that_do_not_fit():
    def dataset_fn(context):
        return Dataset.range(2) if context.input_pipeline_id else Dataset.range(2).map(lambda x: (x, x))

    dataset = from_function(dataset_fn, Topology(replicas_per_worker=2), options=PER_REPLICA)
    with pytest.raises(ElementError, match=r"the same structure.*Found \(\*, \*\) and \*"):
        list(dataset)


@pytest.mark.parametrize("options", [None, PER_REPLICA])
def test_positions_of_input_functions(options):
    def dataset_fn(context):
        return Dataset.range(11).shuffle(5, seed=context.input_pipeline_id).batch(2)

    dataset = from_function(dataset_fn, Topology(replicas_per_worker=2), options=options)
    with iter(dataset) as iterator:  # the first pass, as the fresh datasets' below
        whole = list(iterator)
    for at in range(len(whole) + 1):
        fresh = from_function(dataset_fn, Topology(replicas_per_worker=2), options=options)
        with iter(fresh) as iterator:
            assert list(itertools.islice(iterator, at)) == whole[:at]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(from_function(dataset_fn, Topology(replicas_per_worker=2), options=options))
        again.restore(state)
        assert list(again) == whole[at:]


# The common end


@pytest.mark.parametrize(
    ("steps_of_workers", "expected"),
    [([3], 3), ([3, 5, 0], 5), ([0, 0], 0), ([3, -2], -2), ([-2, -2], -2), ([-1, -1], -1), ([-1, 4], -1), ([-2, -1], -1)],
)
def test_agreed_steps(steps_of_workers, expected):
    assert agreed_steps(steps_of_workers) == expected


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 3), st.booleans(), st.integers(1, 3))
def test_all_workers_take_as_many_steps_as_the_longest(run_workers, sizes, replicas, is_known, batch):
    """With cardinalities that are known up front or not, nothing is lost and nobody waits for another."""
    exchanges = []

    def worker_steps(worker, exchange):
        def counted(number):
            exchanges.append(number)
            return exchange(number)

        def dataset_fn(context):
            dataset = Dataset.range(100 * worker, 100 * worker + sizes[worker])
            return (dataset if is_known else dataset.filter(lambda x: True)).batch(batch)

        return list(from_function(dataset_fn, Topology(len(sizes), worker, replicas), exchange=counted))

    steps = run_workers(len(sizes), worker_steps)
    num_steps = max(math.ceil(math.ceil(size / batch) / replicas) for size in sizes)
    assert {len(own) for own in steps} == {num_steps}
    for worker, own in enumerate(steps):
        assert [row for step in own for rows in step for row in rows] == [100 * worker + i for i in range(sizes[worker])]
        assert all(len(step) == replicas for step in own)
    if len(sizes) == 1:
        assert exchanges == []
    else:
        blocks, rest = divmod(len(exchanges) - len(sizes), len(sizes))
        assert rest == 0
        assert blocks == 0 if is_known or not any(sizes) else 1 <= blocks <= 1 + num_steps


def test_steps_without_rows_on_a_worker_have_the_form_of_the_others(run_workers):
    """Also on one that never had an element, and for trailing sizes that are not known."""

    def worker_steps(worker, exchange):
        def dataset_fn(context):
            dataset = Dataset.range(3).map(lambda x: {"x": np.full((2, 3), x, np.uint8), "name": str(x)}).batch(2)
            return dataset if worker else dataset.take(0)

        return list(from_function(dataset_fn, Topology(2, worker, 1), exchange=exchange, place=forms))

    first, second = run_workers(2, worker_steps)
    assert first == [{"name": [("object", (0,))], "x": [("uint8", (0, 2, 3))]}] * 2
    assert second[0] == {"name": [("object", (2,))], "x": [("uint8", (2, 2, 3))]}


def test_batches_that_lie_ready_are_agreed_upon_together(run_workers):
    """One exchange for many steps, whatever the order in which data end."""

    def worker_steps(worker, exchange):
        told = []

        def counted(value):
            told.append(value)
            return exchange(value)

        def dataset_fn(context):
            return Dataset.range(64 + 8 * worker).filter(lambda x: True).batch(1)

        steps = []
        with iter(from_function(dataset_fn, Topology(2, worker, 1), options=InputOptions(False), exchange=counted)) as iterator:
            while (step := next(iterator, None)) is not None:
                steps.append(step)
                if len(steps) == 1:  # the first one does not wait for others
                    assert len(told) == 2
                assert iterator.stats().num_steps == len(steps)
                wait_until(lambda: iterator._now.source.reader.num_ready >= 16 or iterator._now.source.reader._channel.ended)
        return steps, len(told)

    (first, num_told), (second, _) = run_workers(2, worker_steps)
    assert [step[0] for step in first] == [[x] for x in range(64)] + [[]] * 8
    assert [step[0] for step in second] == [[x] for x in range(72)]
    assert num_told <= 1 + 2 + 72 // 16 + 1


def wait_until(is_so):
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)


def test_an_error_is_told_once_and_raised_again(run_workers):
    """Nobody asks others that are gone."""

    def worker_steps(worker, exchange):
        def numbers():
            yield np.arange(2)
            if worker == 1:
                raise KeyError("broken")

        iterator = iter(from_function(lambda context: Dataset.from_generator(numbers), Topology(2, worker, 1), exchange=exchange))
        next(iterator)
        errors = []
        for _ in range(2):
            with pytest.raises((DatasetError, KeyError)) as raised:
                next(iterator)
            errors.append(str(raised.value))
        return errors

    first, second = run_workers(2, worker_steps)
    assert first[0] == first[1]
    assert second == ["'broken'"] * 2


def test_a_worker_that_cannot_know_the_form_says_so(run_workers):
    def worker_error(worker, exchange):
        elements = Dataset.from_generator(lambda: iter([[1]] * worker))
        with pytest.raises(DatasetError) as raised:
            list(from_function(lambda context: elements, Topology(2, worker, 1), exchange=exchange))
        return str(raised.value)

    first, second = run_workers(2, worker_error)
    assert re.search("This worker has no elements, so it cannot know.*output_signature", first)
    assert second == (
        "Worker 0 has no element for step 0, and cannot know what the others' elements look like, so this worker cannot continue "
        "either. The message of that worker says what to do."
    )


def test_a_position_after_the_own_end(run_workers):
    """A worker that goes on without rows continues without rows, and ends with the others."""

    def worker_steps(worker, exchange):
        distributed = from_function(
            lambda context: Dataset.range(2 + 4 * worker).batch(1), Topology(2, worker, 1), exchange=exchange
        )
        with iter(distributed) as iterator:
            before = [next(iterator) for _ in range(4)]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(distributed)
        again.restore(state)
        return before, list(again), next(again, "end")

    assert run_workers(2, worker_steps) == [
        ([[[0]], [[1]], [[]], [[]]], [[[]], [[]]], "end"),
        ([[[0]], [[1]], [[2]], [[3]]], [[[4]], [[5]]], "end"),
    ]


def steps_of(items, num_steps):
    left = iter(items)
    return CountedSteps(lambda _: (next(left, END), None), lambda: next(left, END), num_steps)


def test_a_cardinality_that_was_a_lie_is_found():
    shorter, longer = steps_of([7], 2), steps_of([7, 8, 9], 2)
    assert [shorter.next(step) for step in (0, 1, 2, 3)] == [(7, None), (END, None), None, None]
    assert [longer.next(step) for step in (0, 1)] == [(7, None), (8, None)]
    for _ in range(3):  # whoever asks again gets the error again
        with pytest.raises(DatasetError, match=r"more than the 2 steps that its cardinality promised.*build it again"):
            longer.next(2)


def test_a_worker_that_cannot_read_stops_the_others(run_workers):
    def worker_steps(worker, exchange):
        def numbers():
            yield np.arange(2)
            if worker == 1:
                raise KeyError("broken")
            yield np.arange(2)

        iterator = iter(from_function(lambda context: Dataset.from_generator(numbers), Topology(2, worker, 1), exchange=exchange))
        steps = [next(iterator)]
        with pytest.raises((DatasetError, KeyError)) as raised:
            next(iterator)
        return steps, raised.type, str(raised.value)

    first, second = run_workers(2, worker_steps)
    assert first[0] == second[0] == [[[0, 1]]]
    assert first[1:] == (
        DatasetError,
        "Worker 1 could not read its input at step 1, so this worker cannot continue either. The message of that worker says why.",
    )
    assert second[1:] == (KeyError, "'broken'")


def test_all_infinite_workers_never_ask(run_workers):
    def worker_steps(worker, exchange):
        calls = []
        distributed = from_function(
            lambda context: Dataset.range(2).repeat().batch(1),
            Topology(2, worker, 1),
            exchange=lambda number: calls.append(number) or exchange(number),
        )
        with iter(distributed) as iterator:
            steps = list(itertools.islice(iterator, 3))
        return steps, calls

    assert run_workers(2, worker_steps) == [([[[0]], [[1]], [[0]]], [-1])] * 2


def test_batches_of_own_data_are_as_many_as_can_be_known():
    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.OFF

    def cardinality(dataset):
        topology = Topology(2, 0, 1)
        return DistributedDataset(dataset.with_options(options), topology, cut, exchange=lambda n: [n]).cardinality()

    assert cardinality(Dataset.range(12).batch(4, drop_remainder=True)) == 6
    assert cardinality(Dataset.range(12).batch(1, drop_remainder=True)) == 12
    assert cardinality(Dataset.range(12).batch(4)) == -2  # the last batch may be shorter, and last fewer steps
    assert cardinality(Dataset.range(0).batch(4)) == 0
    assert cardinality(Dataset.range(12).repeat().batch(4)) == -1


# Stats


def test_stats():
    dataset = DistributedDataset(Dataset.range(10).batch(4), Topology(replicas_per_worker=2), cut)
    with iter(dataset) as iterator:
        assert iterator.stats() == InputStats(0, 0, 0.0, 0.0, 0, 2)
        assert (iterator.stats().examples_per_second, iterator.stats().share_waiting) == (0.0, 0.0)
        next(iterator)
        deadline = time.monotonic() + 5
        while iterator.stats().num_ready < 2:
            assert time.monotonic() < deadline
        time.sleep(0.2)  # the consumer computes
        next(iterator)
        stats = iterator.stats()
    assert (stats.num_steps, stats.num_examples, stats.buffer_size) == (2, 8, 2)
    assert stats.seconds >= 0.2 > stats.seconds_waiting > 0
    assert stats.examples_per_second == 8 / stats.seconds
    assert stats.share_waiting == stats.seconds_waiting / stats.seconds


def test_stats_of_a_slow_input():
    def slow(x):
        time.sleep(0.02)
        return x

    dataset = from_function(lambda context: Dataset.range(6).map(slow).batch(2), Topology(replicas_per_worker=2))
    with iter(dataset) as iterator:
        assert len(list(iterator)) == 2
        stats = iterator.stats()
    assert (stats.num_steps, stats.num_examples) == (2, 6)
    assert stats.share_waiting > 0.9
    assert str(InputStats(2, 2000, 0.5, 0.125, 1, 2)) == (
        "2 steps, 2,000 examples, 4,000 examples/s, waiting for input 25.0% of the time (0.125 s), 1 of 2 elements ready"
    )
