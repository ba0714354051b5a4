"""Packs of sequences: every token once, as full as first fit makes them, and exact positions."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicant.data import Dataset, DistributedDataset
from replicant.errors import ArgumentError, ArgumentTypeError, DatasetError, ElementError
from replicant.replicas._topology import Topology

LENGTHS = [5, 0, 2, 4, 17, 1, 1, 3, 8, 6, 2]


def sequences(lengths):
    """Sequences of these lengths, of the tokens 1, 2, 3, ..."""
    stops = np.cumsum(lengths)
    return [np.arange(stop - size + 1, stop + 1) for stop, size in zip(stops, lengths, strict=True)]


def dataset_of(lengths):
    made = sequences(lengths)
    return Dataset.range(len(made)).map(lambda i: made[i])


def first_fit(lengths, length, lookback):
    """The packs as lists of pieces, which are lists of tokens."""
    done, waiting = [], []
    for sequence in sequences(lengths):
        for start in range(0, len(sequence), length):
            piece = sequence[start : start + length].tolist()
            pack = next((each for each in waiting if sum(map(len, each)) + len(piece) <= length), None)
            if pack is None:
                pack = []
                waiting.append(pack)
            pack.append(piece)
            if sum(map(len, pack)) == length:
                waiting.remove(pack)
                done.append(pack)
            elif len(waiting) > lookback + 1:
                done.append(waiting.pop(0))
    return done + waiting


def pieces(pack):
    """The segments of a pack, which is checked."""
    tokens, segments, positions = pack["tokens"], pack["segment_ids"], pack["positions"]
    assert (segments.dtype, positions.dtype) == (np.int32, np.int32)
    found = [tokens[segments == number].tolist() for number in range(1, segments.max(initial=0) + 1)]
    size = sum(map(len, found))
    assert tokens[:size].tolist() == sum(found, [])
    assert positions.tolist() == [i for each in found for i in range(len(each))] + [0] * (len(tokens) - size)
    assert not tokens[size:].any()
    assert not segments[size:].any()
    return found


def plain(packs):
    return [{name: value.tolist() for name, value in pack.items()} for pack in packs]


LIMITS = st.tuples(st.lists(st.integers(0, 12), max_size=12), st.integers(1, 6), st.integers(0, 3))


@given(LIMITS)
@settings(max_examples=100, deadline=None)
def test_packs_are_those_of_first_fit_and_hold_every_token_once(limits):
    lengths, length, lookback = limits
    packs = list(dataset_of(lengths).pack_sequences(length, lookback=lookback))
    assert all(value.shape == (length,) for pack in packs for value in pack.values())
    found = [pieces(pack) for pack in packs]
    assert found == first_fit(lengths, length, lookback)
    assert sum(sorted(itertools.chain(*found)), []) == list(range(1, sum(lengths) + 1))


@given(LIMITS, st.sampled_from(["split", "drop"]))
@settings(max_examples=40, deadline=None)
def test_every_position_has_the_same_rest(limits, policy):
    lengths, length, lookback = limits
    dataset = dataset_of(lengths).repeat(2).pack_sequences(length, lookback=lookback, policy=policy)
    whole = plain(dataset)
    for cut in range(len(whole) + 1):
        iterator = iter(dataset)
        assert plain(itertools.islice(iterator, cut)) == whole[:cut]
        state = json.loads(json.dumps(iterator.state()))
        again = iter(dataset)
        again.restore(state)
        assert json.loads(json.dumps(again.state())) == state
        assert plain(again) == whole[cut:]
        assert sum(map(len, state["position"]["packs"])) <= (lookback + 1) * length


CUT_EVERYWHERE = {
    "shuffled before": lambda: dataset_of(LENGTHS).shuffle(4, seed=1).repeat(3).pack_sequences(8, lookback=1),
    "shuffled after": lambda: dataset_of(LENGTHS).pack_sequences(8, lookback=2).shuffle(3, seed=1).repeat(2),
    "all orders": lambda: dataset_of(LENGTHS).global_shuffle(seed=1).repeat(2).pack_sequences(5).batch(2),
    "maps on threads": lambda: (
        dataset_of(LENGTHS)
        .map(lambda x: x + 1, num_parallel_calls=2)
        .pack_sequences(8, lookback=1)
        .map(lambda pack: pack | {"tokens": pack["tokens"] * 2}, num_parallel_calls=2)
        .batch(2)
        .prefetch(2)
    ),
    "rows of batches": lambda: Dataset.range(39).batch(3).batch(2, drop_remainder=True).unbatch().pack_sequences(7, lookback=0),
    "packs of packs": lambda: dataset_of(LENGTHS).pack_sequences(4).pack_sequences(10, key="tokens", lookback=1),
    "errors left out": lambda: dataset_of(LENGTHS).pack_sequences(6, policy="refuse", lookback=1).ignore_errors().repeat(2),
}


@pytest.mark.parametrize("name", CUT_EVERYWHERE)
def test_pipelines_continue_from_every_point(name):
    make = CUT_EVERYWHERE[name]
    whole = plain(make())
    assert len(whole) >= 3
    for cut in range(len(whole) + 1):
        with iter(make()) as iterator:
            assert plain(itertools.islice(iterator, cut)) == whole[:cut]
            state = json.loads(json.dumps(iterator.state()))
        again = iter(make())
        again.restore(state)
        assert plain(again) == whole[cut:], cut


def test_a_restored_iterator_reads_no_more_than_the_open_packs():
    read = []
    made = sequences([3] * 100)
    dataset = Dataset.range(100).map(lambda i: (read.append(int(i)), made[i])[1]).pack_sequences(4, lookback=1)
    iterator = iter(dataset)
    _ = [next(iterator) for _ in range(50)]
    state = iterator.state()
    again = iter(dataset)
    read.clear()
    again.restore(state)
    assert len(read) <= 2
    assert pieces(next(again)) == pieces(next(iterator))


def test_two_iterators_do_not_disturb_each_other():
    dataset = dataset_of(LENGTHS).pack_sequences(6)
    one, other = iter(dataset), iter(dataset)
    together = [(next(one), next(other)) for _ in range(3)]
    assert plain(a for a, _ in together) == plain(b for _, b in together) == plain(dataset.take(3))


@pytest.mark.parametrize(("policy", "tokens", "num_skipped"), [("split", 49, 0), ("drop", 24, 2)])
def test_what_is_dropped_is_counted(policy, tokens, num_skipped):
    dataset = dataset_of(LENGTHS).pack_sequences(6, policy=policy)
    iterator = iter(dataset)
    assert sum(int((pack["segment_ids"] > 0).sum()) for pack in iterator) == tokens
    assert iterator.num_skipped == num_skipped
    distributed = iter(DistributedDataset(dataset.repeat(2).batch(2), Topology(1, 0, 1), lambda rows, sizes: rows))
    _ = list(distributed)
    assert distributed.stats().num_skipped == 2 * num_skipped


def test_nothing_makes_nothing():
    empty = Dataset.from_tensor_slices(np.zeros((0, 3), np.int64)).pack_sequences(4)
    assert (list(empty), empty.cardinality()) == ([], 0)
    without_tokens = dataset_of([0, 0]).pack_sequences(4)
    assert (list(without_tokens), without_tokens.cardinality()) == ([], Dataset.UNKNOWN)
    assert list(dataset_of([7]).pack_sequences(4, policy="drop")) == []
    assert dataset_of(LENGTHS).repeat().pack_sequences(4).cardinality() == Dataset.INFINITE


def test_an_empty_text_has_no_dtype():
    """`np.asarray([])` is of float64, as what a tokenizer makes of an empty text is."""
    made = [np.asarray([]), np.asarray([5, 6], np.int16), np.asarray([]), np.asarray([7], np.int16)]
    dataset = Dataset.range(4).map(lambda i: made[i]).pack_sequences(4)
    assert dataset.element_spec["tokens"].dtype == np.int16
    assert [pieces(pack) for pack in dataset] == [[[5, 6], [7]]]
    assert next(iter(dataset))["tokens"].dtype == np.int16
    nothing = Dataset.range(2).map(lambda i: np.asarray([])).pack_sequences(4)
    assert (nothing.element_spec, list(nothing)) == (None, [])


def test_a_named_component_is_packed():
    dataset = Dataset.from_tensor_slices({"text": ["a", "b"], "ids": np.array([[1, 2], [3, 4]], np.uint32)})
    packed = dataset.pack_sequences(5, key="ids")
    assert [pieces(pack) for pack in packed] == [[[1, 2], [3, 4]]]
    assert {name: (spec.shape, str(spec.dtype)) for name, spec in packed.element_spec.items()} == {
        "positions": ((5,), "int32"),
        "segment_ids": ((5,), "int32"),
        "tokens": ((5,), "uint32"),
    }


def opened(dataset, num_workers, position=None):
    topologies = [Topology(num_workers, worker, 1) for worker in range(num_workers)]
    iterators = [iter(DistributedDataset(dataset, each, lambda rows, sizes: rows)) for each in topologies]
    for iterator in iterators if position is not None else []:
        iterator.restore(position)
    return iterators


def rows(iterators, steps=None):
    """The rows of all packs of some steps, or of all that are left."""
    shares = [list(itertools.islice(iterator, steps)) for iterator in iterators]
    return [row for parts in zip(*shares, strict=True) for part in parts for row in part["tokens"].tolist()]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 2)])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_all_workers_see_one_sequence_of_packs(before, after, step):
    dataset = dataset_of(LENGTHS).shuffle(5, seed=1, reshuffle_each_iteration=False).pack_sequences(6, lookback=1).batch(3)
    whole = [row.tolist() for batch in dataset for row in batch["tokens"]]
    workers = opened(dataset, before)
    first = rows(workers, step)
    position = json.loads(json.dumps(workers[0].state()))
    for worker in workers:
        worker.close()
    assert first + rows(opened(dataset, after, position)) == whole


def packed(*elements, **settings):
    return Dataset.range(len(elements)).map(lambda i: elements[i]).pack_sequences(4, **settings)


ONE = np.array([1, 2])
NUMBERS = Dataset.range(4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: NUMBERS.pack_sequences(0), ArgumentError, "pack_sequences: length must be at least 1. Received: 0"),
        (lambda: NUMBERS.pack_sequences(4.0), ArgumentTypeError, "pack_sequences: length must be an integer. Received: 4.0"),
        (lambda: NUMBERS.pack_sequences(4, lookback=-1), ArgumentError, "lookback must be at least 0. Received: -1"),
        (lambda: NUMBERS.pack_sequences(4, lookback=None), ArgumentTypeError, "lookback must be an integer. Received: None"),
        (lambda: NUMBERS.pack_sequences(4, key=0), ArgumentTypeError, "key must be the name of a component, or None. Received: 0"),
        (
            lambda: NUMBERS.pack_sequences(4, policy="cut"),
            ArgumentError,
            "policy must be one of 'split', 'refuse', 'drop'. Received: 'cut'",
        ),
        (lambda: list(NUMBERS.pack_sequences(4)), DatasetError, r"Received one of shape \(\). Each element must be a whole"),
        (lambda: list(NUMBERS.batch(2).batch(2).pack_sequences(4)), DatasetError, r"one of shape \(2, 2\). Call `unbatch\(\)`"),
        (
            lambda: list(Dataset.from_tensor_slices(["a text"]).pack_sequences(4)),
            DatasetError,
            r"Make numbers of texts first: `tokenize\(tokenizer\)`\.",
        ),
        (lambda: list(packed(ONE * 0.5)), DatasetError, "token ids, which are whole numbers. Received a sequence of dtype float64"),
        (lambda: packed(ONE * 0.5).element_spec, DatasetError, "which are whole numbers. Received a sequence of dtype float64"),
        (lambda: list(packed(ONE > 1)), DatasetError, "which are whole numbers. Received a sequence of dtype bool"),
        (
            lambda: list(packed(ONE, ONE.astype(np.int16))),
            ElementError,
            "need the same dtype. Those before were of int64, this one is of int16. Convert them in `map`",
        ),
        (
            lambda: list(packed(np.arange(5), policy="refuse")),
            ElementError,
            'a sequence has 5 tokens, more than the length of a pack, which is 4.*use policy="split"',
        ),
        (
            lambda: list(packed({"ids": ONE})),
            DatasetError,
            r"Received \{'ids': \*\}. Name the component that holds the tokens: `key=\"ids\"`",
        ),
        (lambda: list(packed((ONE, ONE))), DatasetError, r"or dicts and the name of one component. Received \(\*, \*\)\.$"),
        (lambda: list(packed({"ids": ONE}, key="x")), DatasetError, r"no component 'x', which `key` names. They are \{'ids': \*\}"),
        (lambda: list(packed(ONE, key="x")), DatasetError, r"elements have no component 'x', which `key` names. They are \*\."),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_dtype_that_changes_after_a_restart_is_refused_all_the_same():
    made = [ONE, ONE, ONE.astype(np.int16)]
    dataset = Dataset.range(3).map(lambda i: made[i]).pack_sequences(2)
    iterator = iter(dataset)
    assert [pieces(next(iterator)) for _ in range(2)] == [[[1, 2]], [[1, 2]]]
    again = iter(dataset)
    again.restore(json.loads(json.dumps(iterator.state())))
    with pytest.raises(ElementError, match="Those before were of int64, this one is of int16"):
        next(again)
