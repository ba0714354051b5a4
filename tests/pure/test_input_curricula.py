"""Weights of mixtures that change: exact stages, exact positions, and an end when nothing can be drawn any more."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import Dataset
from replicant.errors import ArgumentError, ArgumentTypeError, ElementError

SOURCES = [Dataset.from_tensors(np.int64(number)).repeat() for number in range(3)]
TABLE = [(0, [1.0, 0.0, 0.0]), (100, [1.0, 1.0, 0.0]), (400, [0.0, 0.0, 1.0])]


def mixture(weights, sources=SOURCES, seed=3, **settings):
    return Dataset.sample_from_datasets(sources, weights, seed=seed, **settings)


def numbers(dataset, count=None):
    return [int(x) for x in itertools.islice(iter(dataset), count)]


def test_a_table_has_stages():
    drawn = numbers(mixture(TABLE), 500)
    assert drawn[:100] == [0] * 100
    assert set(drawn[100:400]) == {0, 1}
    assert 120 < sum(drawn[100:400]) < 180
    assert drawn[400:] == [2] * 100


def test_a_function_and_a_dataset_of_the_same_weights_draw_the_same():
    table = mixture(TABLE)

    def weights(step):
        assert isinstance(step, int)
        return TABLE[(step >= 100) + (step >= 400)][1]

    per_draw = Dataset.range(1000).map(lambda step: np.array(weights(int(step))))
    assert numbers(table, 500) == numbers(mixture(weights), 500) == numbers(mixture(per_draw), 500)


def test_the_same_weights_throughout_draw_what_fixed_weights_draw():
    fixed = mixture([0.2, 0.3, 0.5])
    assert numbers(fixed, 300) == numbers(mixture([(0, [0.2, 0.3, 0.5])]), 300)
    assert numbers(fixed, 300) == numbers(mixture(lambda step: (0.2, 0.3, 0.5)), 300)


def finite():
    return [Dataset.range(first, first + size) for first, size in ((0, 7), (100, 12), (200, 3))]


WEIGHTS = {
    "table": [(0, [1, 0, 0]), (4, [1, 2, 0]), (40, [0, 0, 1]), (60, [0, 1, 0])],
    "function": lambda step: [1, step % 3, step > 5],
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("stop", [False, True])
def test_it_continues_from_every_point(name, stop):
    dataset = mixture(WEIGHTS[name], finite(), stop_on_empty_dataset=stop)
    whole = numbers(dataset)
    assert len(whole) == len(set(whole))
    assert stop or len(whole) == 22
    for cut in range(len(whole) + 1):
        iterator = iter(dataset)
        assert [int(x) for x in itertools.islice(iterator, cut)] == whole[:cut]
        state = json.loads(json.dumps(iterator.state()))
        again = iter(dataset)
        again.restore(state)
        assert [int(x) for x in again] == whole[cut:]


def test_a_stage_whose_datasets_have_ended_is_left():
    dataset = mixture([(0, [1, 0]), (10**12, [0, 1])], [Dataset.range(3), Dataset.range(10, 12)])
    assert numbers(dataset) == [0, 1, 2, 10, 11]
    assert numbers(mixture([(0, [0, 1]), (1, [1, 0])], [Dataset.range(3), Dataset.range(10, 12)])) == [10, 0, 1, 2]


ENDLESS = {
    "a dataset of weights": Dataset.from_tensors(np.array([1.0, 0.0])).repeat(),
    "a function": lambda step: [1.0, 0.0],
}


@pytest.mark.parametrize("name", ENDLESS)
def test_weights_for_what_has_ended_do_not_loop_for_ever(name):
    dataset = mixture(ENDLESS[name], [Dataset.range(3), Dataset.range(10, 12)])
    iterator = iter(dataset)
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(ElementError, match=r"10,000 draws in a row.*that have ended \(numbers 0\)\. Repeat these datasets"):
            next(iterator)
    stopped = mixture(ENDLESS[name], [Dataset.range(3), Dataset.range(10, 12)], stop_on_empty_dataset=True)
    assert numbers(stopped) == [0, 1, 2]


def test_a_rare_dataset_in_a_dataset_of_weights_takes_no_time():
    """Weights of ended datasets had been drawn in vain: for hours, with these."""
    weights = Dataset.from_tensors(np.array([1.0, 1e-12])).repeat()
    assert numbers(mixture(weights, [Dataset.range(3), Dataset.range(10, 12)])) == [0, 1, 2, 10, 11]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.tuples(*[st.integers(0, 2)] * 3).filter(any)), min_size=1, max_size=4),
    st.tuples(*[st.integers(0, 8)] * 3),
)
@settings(max_examples=60, deadline=None)
def test_no_element_comes_twice_and_those_of_the_last_stage_all_come(stages, sizes):
    begins = np.cumsum([0, *(length for length, _ in stages[:-1])]).tolist()
    table = [(begin, weights) for begin, (_, weights) in zip(begins, stages, strict=True)]
    sources = [Dataset.range(100 * number, 100 * number + size) for number, size in enumerate(sizes)]
    drawn = numbers(mixture(table, sources))
    parts = [[x for x in drawn if x // 100 == number] for number in range(3)]
    for number, (part, size, weight) in enumerate(zip(parts, sizes, stages[-1][1], strict=True)):
        assert part == list(range(100 * number, 100 * number + (size if weight else len(part))))


def test_the_cardinality_is_what_is_known():
    mixed = [Dataset.range(3), SOURCES[0]]
    assert mixture([(0, [1, 0]), (5, [0, 1])], mixed).cardinality() == Dataset.INFINITE
    assert mixture([(0, [0, 1]), (5, [1, 0])], mixed).cardinality() == Dataset.UNKNOWN
    assert mixture(lambda step: [1, 0], mixed).cardinality() == Dataset.UNKNOWN
    assert mixture(TABLE).cardinality() == Dataset.INFINITE


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([(1, [1, 0, 0])], ArgumentError, r"must begin at draw 0 and at growing numbers after it. They begin at \[1\]"),
        ([(0, [1, 0, 0]), (5, [0, 1, 0]), (5, [0, 0, 1])], ArgumentError, r"They begin at \[0, 5, 5\]"),
        ([(0.5, [1, 0, 0])], ArgumentTypeError, "begins at a whole number of draws. Received: 0.5"),
        ([(0, [1, 0])], ArgumentError, r"stage at draw 0 must be 3 numbers of at least 0 and not all 0.*Received: \[1, 0\]"),
        ([(0, [1, 0, 0]), (5, [0, 0, 0])], ArgumentError, r"stage at draw 5 must be 3 numbers.*Received: \[0, 0, 0\]"),
        ([(0, [1, 0, -1])], ArgumentError, r"stage at draw 0 must be 3 numbers.*Received: \[1, 0, -1\]"),
        ([(0, [1, 0, np.inf])], ArgumentError, "stage at draw 0 must be 3 numbers"),
        ([(0, ["a", "b", "c"])], ArgumentError, "stage at draw 0 must be 3 numbers"),
    ],
)
def test_a_bad_table_is_refused(weights, error, message):
    with pytest.raises(error, match=message):
        mixture(weights)


def test_a_function_that_returns_no_weights_is_refused():
    def weights(step):
        return [1.0, 1.0, 1.0] if step < 2 else [0.0, 0.0, 0.0]

    iterator = iter(mixture(weights))
    _ = next(iterator), next(iterator)
    with pytest.raises(ElementError, match=r"weights\(2\) must hold 3 weights, one for each dataset, of at least 0 and not all 0"):
        next(iterator)
    with pytest.raises(ElementError, match=r"must hold 3 weights.*Received: None"):
        next(iter(mixture(lambda step: None)))
